"""A notebook that starts processes with `start_method="fork"`, executed as Jupyter does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]

CELLS = (
    """
import sys
sys.path.insert(0, {root!r})
import reference.idist as idist
from reference.cifar10.config import Config
from reference.cifar10.trainer import training
""",
    """
def share(local_rank, greeting):  # defined in the notebook, so only a forked process knows it
    return [greeting, idist.get_rank(), idist.all_reduce(local_rank + 1)]

with idist.Parallel(backend="gloo", nproc_per_node=2, start_method="fork") as parallel:
    print(parallel.run(share, "hello"))
""",
    """
config = Config(
    model="mobilenet_v3_small", dataset="digits", batch_size=16, max_train_samples=32, max_eval_samples=21,
    num_epochs=1, threads=1, log_every_iters=1, output_path={output!r},
)
with idist.Parallel(backend="gloo", nproc_per_node=2, start_method="fork") as parallel:
    result = parallel.run(training, config)
print(result["exit_reason"], result["world_size"], result["n_evaluated"])
""",
)


def test_processes_are_forked_from_a_notebook(tmp_path: Path) -> None:
    cells = [cell.format(root=str(ROOT), output=str(tmp_path / "out")) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=500, kernel_name="python3", resources=place).execute()
    printed = [
        "".join(o["text"] for o in cell["outputs"] if o.get("name") == "stdout") for cell in notebook.cells
    ]
    assert "['hello', 0, 3]" in printed[1]
    assert "finished 2 21" in printed[2]
    (file,) = tmp_path.glob("out/*/result.json")
    assert json.loads(file.read_text())["backend"] == "gloo"

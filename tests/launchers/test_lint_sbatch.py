"""`make lint-sbatch`: planted mistakes are found, where they are, and what is right is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "launchers" / "lint_sbatch.py"
HELP = """\
  -a, --array=indexes         job array index values
  -B  --extra-node-info=S[:C[:T]]  combine request of sockets per node,
      --container             Path to OCI container bundle
                              >= --mem-per-cpu if --mem is specified.
      --brand-new=x           an option of a later Slurm
"""
RIGHT = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4   # a comment
#SBATCH -t 10 -p debug
#SBATCH --job-name="two words"
##SBATCH --no-such-option-as-it-is-off

# a comment
#SBATCH --open-mode=append
set -e
srun python program.py
"""


def lint(tmp_path: Path, text: str, **variables: str) -> tuple[int, list[str]]:
    """Exit code and findings for a script, without the name of its file. There is no sbatch in the PATH."""
    file = tmp_path / "job.sbatch"
    file.write_text(text)
    result = subprocess.run(
        [sys.executable, str(PROGRAM), str(file)], env={"PATH": "/nowhere", **variables}, timeout=60, text=True,
        capture_output=True,
    )  # fmt: skip
    assert result.stderr == ""
    return result.returncode, [line.removeprefix(f"{file}:") for line in result.stdout.splitlines()]


def test_nothing_is_found_in_a_right_script(tmp_path: Path) -> None:
    assert lint(tmp_path, RIGHT) == (0, [])


@pytest.mark.parametrize(
    ("wrong", "right", "finding"),
    [
        (
            "set -e\n#SBATCH --mem=1G",
            "set -e",
            "10: sbatch does not read this line: it stops at the first command (line 9)",
        ),
        ("--open-mode", "--open-modus", "8: sbatch has no option --open-modus"),
        ("-t 10", "", "1: no time limit: add #SBATCH --time=HH:MM:SS"),
        ("--ntasks-per-node=4", "-n 8", "2: -n 8 leaves it to Slurm how the tasks lie on the nodes"),
        ("--ntasks-per-node=4", "--ntasks=8", "2: -n 8 leaves it to Slurm how the tasks lie on the nodes"),
        ("-p debug", "-Z debug", "3: sbatch has no option -Z"),
    ],
)
def test_planted_mistakes(tmp_path: Path, wrong: str, right: str, finding: str) -> None:
    text = RIGHT.replace(wrong, right) if wrong in RIGHT else RIGHT.replace(right, wrong)
    assert text != RIGHT
    code, findings = lint(tmp_path, text)
    assert code == 1
    assert len(findings) == 1 and findings[0].startswith(finding), findings


def test_a_number_of_tasks_is_right_on_one_node_and_beside_their_number_for_each(tmp_path: Path) -> None:
    assert lint(tmp_path, RIGHT.replace("--nodes=2 --ntasks-per-node=4", "-N1 -n4")) == (0, [])
    assert lint(tmp_path, RIGHT.replace("--nodes=2", "--nodes=2 -n 8")) == (0, [])


def test_every_mistake_is_a_line(tmp_path: Path) -> None:
    code, findings = lint(
        tmp_path, "#!/bin/sh\n#SBATCH -n 4 --tiem=5\necho\n#SBATCH --mem=1G\n#SBATCH --time=5\n"
    )
    assert code == 1
    assert [finding.split(":")[0] for finding in findings] == ["1", "2", "2", "4", "5"]


def test_the_options_of_this_machines_sbatch_count(tmp_path: Path) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{HELP}END\n")
    sbatch.chmod(0o755)
    text = RIGHT.replace("-p debug", "--brand-new=1 --array=1 --container=x --extra-node-info=1")
    assert lint(tmp_path, text)[0] == 1
    assert lint(tmp_path, text, PATH=str(tmp_path)) == (0, [])


def test_our_own_scripts_are_right() -> None:
    result = subprocess.run([sys.executable, str(PROGRAM)], timeout=60, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")

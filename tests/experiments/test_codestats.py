"""The code comparison is read from the sources, not typed."""

from __future__ import annotations

from experiments import codestats
from experiments.rules import BACKENDS

SOURCE = '''"""A docstring
of two lines."""

import horovod.torch as hvd  # counts
from torch.utils.data.distributed import DistributedSampler


def main(rank):
    """Another."""
    # a comment
    hvd.init()
    text = """code,
    not a docstring"""
    use(
        reduce=hvd.allreduce,
        op=hvd.Sum,
    )
    other.init()
    return DistributedSampler([], rank=hvd.rank()), text
'''


def test_lines_calls_and_concepts() -> None:
    found = codestats.of_program("horovod_native", SOURCE)
    assert found.lines == 12
    assert found.calls == {"DistributedSampler": 1, "hvd.allreduce": 1, "hvd.init": 1, "hvd.rank": 1}
    assert found.concepts == [
        "start of the library",
        "sum over ranks",
        "shares of the data for each rank",
        "rank",
    ]


def test_all_programs() -> None:
    found = {one.program: one for one in codestats.statistics()}
    assert list(found) == list(BACKENDS)
    assert set(found["idist"].backends) == {"none", "gloo", "nccl", "horovod", "xla-tpu"}
    assert found["native_ddp"].calls["DistributedDataParallel"] == 1
    assert found["xla_native"].calls["xm.optimizer_step"] == 1
    assert found["idist"].launchers["torchrun"] == (
        "NP=2 launchers/torchrun.sh -m reference.programs.idist --backend=gloo"
    )
    assert set(found["horovod_native"].launchers) == {"horovodrun"}
    for one in found.values():
        assert one.lines > 10 and one.calls and one.concepts

"""Environments recorded from real launchers, contradictions, host lists and ports.

The recordings are the launch variables of real processes: torchrun and torch.distributed.launch of torch 2.14, Slurm
22.05 on hosts named node1 to node3, Open MPI 4.1.  Horovod's come from the functions of horovod 0.28.1 that make them
(``get_host_assignments`` and ``create_slot_env_vars``).  The first line of a recording holds what all its processes
have in common, each following line what is special to one process, in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.idist import hostlist
from reference.idist.environment import Layout, detect, slurm_port, variables_seen
from reference.idist.hostlist import expand_hostlist


def env(text: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in text.split())


def processes(recording: str) -> list[dict[str, str]]:
    common, *special = [env(line) for line in recording.strip().splitlines()]
    return [{**common, **mine} for mine in special]


TORCHRUN = """
    WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 ROLE_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29611 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0
    RANK=0 LOCAL_RANK=0 ROLE_RANK=0
    RANK=1 LOCAL_RANK=1 ROLE_RANK=1
"""
TORCH_DISTRIBUTED_LAUNCH = """
    WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 ROLE_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29612 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0
    RANK=0 LOCAL_RANK=0 ROLE_RANK=0
    RANK=1 LOCAL_RANK=1 ROLE_RANK=1
"""
SRUN_TORCHRUN = """
    WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_WORLD_SIZE=2 ROLE_WORLD_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=43791 TORCHELASTIC_RUN_ID=77 TORCHELASTIC_RESTART_COUNT=0 SLURM_JOB_ID=7 SLURM_JOBID=7 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_NTASKS=2 SLURM_NPROCS=2 SLURM_NTASKS_PER_NODE=1 SLURM_NNODES=2 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=node[1-2] SLURM_NODELIST=node[1-2] SLURM_STEP_NODELIST=node[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_TASKS_PER_NODE=1(x2) SLURM_LOCALID=0
    RANK=0 LOCAL_RANK=0 GROUP_RANK=0 ROLE_RANK=0 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_GTIDS=0
    RANK=1 LOCAL_RANK=1 GROUP_RANK=0 ROLE_RANK=1 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_GTIDS=0
    RANK=2 LOCAL_RANK=0 GROUP_RANK=1 ROLE_RANK=2 SLURM_PROCID=1 SLURM_NODEID=1 SLURM_GTIDS=1
    RANK=3 LOCAL_RANK=1 GROUP_RANK=1 ROLE_RANK=3 SLURM_PROCID=1 SLURM_NODEID=1 SLURM_GTIDS=1
"""
SRUN_2_2 = """
    SLURM_JOB_ID=1 SLURM_JOBID=1 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_NTASKS_PER_NODE=2 SLURM_NNODES=2 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=node[1-2] SLURM_NODELIST=node[1-2] SLURM_STEP_NODELIST=node[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_TASKS_PER_NODE=2(x2)
    SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0,1
    SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_GTIDS=0,1
    SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_GTIDS=2,3
    SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_GTIDS=2,3
"""
SRUN_3_1 = """
    SLURM_JOB_ID=2 SLURM_JOBID=2 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_NNODES=2 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=node[1-2] SLURM_NODELIST=node[1-2] SLURM_STEP_NODELIST=node[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=3,1 SLURM_TASKS_PER_NODE=3,1
    SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0,1,2
    SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_GTIDS=0,1,2
    SLURM_PROCID=2 SLURM_LOCALID=2 SLURM_NODEID=0 SLURM_GTIDS=0,1,2
    SLURM_PROCID=3 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_GTIDS=3
"""
SRUN_PLANE_3_1_1 = """
    SLURM_JOB_ID=8 SLURM_JOBID=8 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_NTASKS=5 SLURM_NPROCS=5 SLURM_NNODES=3 SLURM_JOB_NUM_NODES=3 SLURM_JOB_NODELIST=node[1-3] SLURM_NODELIST=node[1-3] SLURM_STEP_NODELIST=node[1-3] SLURM_STEP_NUM_NODES=3 SLURM_STEP_NUM_TASKS=5 SLURM_STEP_TASKS_PER_NODE=3,1(x2) SLURM_TASKS_PER_NODE=3,1(x2)
    SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0,1,4
    SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_GTIDS=0,1,4
    SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_GTIDS=2
    SLURM_PROCID=3 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_GTIDS=3
    SLURM_PROCID=4 SLURM_LOCALID=2 SLURM_NODEID=0 SLURM_GTIDS=0,1,4
"""
SRUN_SECOND_NODE_OF_JOB = """
    SLURM_JOB_ID=13 SLURM_JOBID=13 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_NTASKS=2 SLURM_NPROCS=2 SLURM_NTASKS_PER_NODE=2 SLURM_NNODES=1 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=node[1-2] SLURM_NODELIST=node[1-2] SLURM_STEP_NODELIST=node2 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_TASKS_PER_NODE=2 SLURM_NODEID=0 SLURM_GTIDS=0,1
    SLURM_PROCID=0 SLURM_LOCALID=0
    SLURM_PROCID=1 SLURM_LOCALID=1
"""
SRUN_ARBITRARY_RANK_0_ON_NODE2 = """
    SLURM_JOB_ID=14 SLURM_JOBID=14 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_NTASKS=3 SLURM_NPROCS=3 SLURM_NTASKS_PER_NODE=2 SLURM_NNODES=2 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=node[1-2] SLURM_NODELIST=node[1-2] SLURM_STEP_NODELIST=node[1-2] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=1,2 SLURM_TASKS_PER_NODE=1,2
    SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_GTIDS=0,1
    SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_GTIDS=0,1
    SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=2
"""
SRUN_PTY_ONE_TASK = """
    SLURM_JOB_ID=17 SLURM_JOBID=17 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_NTASKS=1 SLURM_NPROCS=1 SLURM_NNODES=1 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=node1 SLURM_NODELIST=node1 SLURM_STEP_NODELIST=node1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_TASKS_PER_NODE=1
    SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0
"""
MPIRUN = """
    OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_UNIVERSE_SIZE=2
    OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_NODE_RANK=0
    OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_NODE_RANK=1
"""
# mpirun on 2 nodes in an sbatch script: node1 has the batch shell's variables, node2 those of the daemon's own step.
MPIRUN_IN_SLURM_2_2 = """
    OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 SLURM_JOB_ID=3 SLURM_JOBID=3 SLURM_JOB_NODELIST=node[1-2] SLURM_NODELIST=node[1-2] SLURM_JOB_NUM_NODES=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0
    OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_NODE_RANK=0 SLURM_NNODES=2 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_NTASKS_PER_NODE=2 SLURM_TASKS_PER_NODE=2(x2)
    OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_NODE_RANK=1 SLURM_NNODES=2 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_NTASKS_PER_NODE=2 SLURM_TASKS_PER_NODE=2(x2)
    OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_NODE_RANK=0 SLURM_NNODES=1 SLURM_NTASKS=1 SLURM_NPROCS=1 SLURM_NTASKS_PER_NODE=1 SLURM_TASKS_PER_NODE=1 SLURM_STEP_ID=4 SLURM_STEPID=4 SLURM_STEP_NODELIST=node2 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1
    OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_NODE_RANK=1 SLURM_NNODES=1 SLURM_NTASKS=1 SLURM_NPROCS=1 SLURM_NTASKS_PER_NODE=1 SLURM_TASKS_PER_NODE=1 SLURM_STEP_ID=4 SLURM_STEPID=4 SLURM_STEP_NODELIST=node2 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1
"""
MPIRUN_IN_SLURM_1_1_1 = """
    OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_NODE_RANK=0 SLURM_JOB_ID=15 SLURM_JOBID=15 SLURM_JOB_NODELIST=node[1-3] SLURM_NODELIST=node[1-3] SLURM_JOB_NUM_NODES=3 SLURM_LOCALID=0 SLURM_NTASKS_PER_NODE=1
    OMPI_COMM_WORLD_RANK=0 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_NNODES=3 SLURM_NTASKS=3 SLURM_NPROCS=3 SLURM_TASKS_PER_NODE=1(x3)
    OMPI_COMM_WORLD_RANK=1 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_NNODES=2 SLURM_NTASKS=2 SLURM_NPROCS=2 SLURM_TASKS_PER_NODE=1(x2) SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NODELIST=node[2-3] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2)
    OMPI_COMM_WORLD_RANK=2 SLURM_PROCID=1 SLURM_NODEID=1 SLURM_NNODES=2 SLURM_NTASKS=2 SLURM_NPROCS=2 SLURM_TASKS_PER_NODE=1(x2) SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NODELIST=node[2-3] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2)
"""
HOROVOD_3_1 = """
    HOROVOD_SIZE=4
    HOROVOD_RANK=0 HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=3 HOROVOD_CROSS_RANK=0 HOROVOD_CROSS_SIZE=2 HOROVOD_HOSTNAME=node1
    HOROVOD_RANK=1 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=3 HOROVOD_CROSS_RANK=0 HOROVOD_CROSS_SIZE=1 HOROVOD_HOSTNAME=node1
    HOROVOD_RANK=2 HOROVOD_LOCAL_RANK=2 HOROVOD_LOCAL_SIZE=3 HOROVOD_CROSS_RANK=0 HOROVOD_CROSS_SIZE=1 HOROVOD_HOSTNAME=node1
    HOROVOD_RANK=3 HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=1 HOROVOD_CROSS_RANK=1 HOROVOD_CROSS_SIZE=2 HOROVOD_HOSTNAME=node2
"""
HOROVOD_ONE_NODE = """
    HOROVOD_SIZE=2 HOROVOD_LOCAL_SIZE=2 HOROVOD_CROSS_RANK=0 HOROVOD_CROSS_SIZE=1 HOROVOD_HOSTNAME=localhost
    HOROVOD_RANK=0 HOROVOD_LOCAL_RANK=0
    HOROVOD_RANK=1 HOROVOD_LOCAL_RANK=1
"""
# rank by rank: (local rank, processes on the node, node rank)
WORLDS: list[tuple[str, str, int | None, str | None, int | None, list[tuple[int, int, int | None]]]] = [
    (TORCHRUN, "torchrun", 1, "127.0.0.1", 29611, [(0, 2, 0), (1, 2, 0)]),
    (TORCH_DISTRIBUTED_LAUNCH, "torchrun", 1, "127.0.0.1", 29612, [(0, 2, 0), (1, 2, 0)]),
    (SRUN_TORCHRUN, "torchrun", 2, "node1", 43791, [(0, 2, 0), (1, 2, 0), (0, 2, 1), (1, 2, 1)]),
    (SRUN_2_2, "slurm", 2, "node1", 22749, [(0, 2, 0), (1, 2, 0), (0, 2, 1), (1, 2, 1)]),
    (SRUN_3_1, "slurm", 2, "node1", 16105, [(0, 3, 0), (1, 3, 0), (2, 3, 0), (0, 1, 1)]),
    (SRUN_PLANE_3_1_1, "slurm", 3, "node1", 28420, [(0, 3, 0), (1, 3, 0), (0, 1, 1), (0, 1, 2), (2, 3, 0)]),
    (SRUN_SECOND_NODE_OF_JOB, "slurm", 1, "node2", 12593, [(0, 2, 0), (1, 2, 0)]),
    (SRUN_PTY_ONE_TASK, "slurm", 1, "node1", 20803, [(0, 1, 0)]),
    (MPIRUN, "openmpi", 1, None, None, [(0, 2, 0), (1, 2, 0)]),
    (
        MPIRUN_IN_SLURM_2_2,
        "openmpi",
        None,
        None,
        None,
        [(0, 2, None), (1, 2, None), (0, 2, None), (1, 2, None)],
    ),
    (MPIRUN_IN_SLURM_1_1_1, "openmpi", None, None, None, [(0, 1, None)] * 3),
    (HOROVOD_3_1, "horovod", None, None, None, [(0, 3, None), (1, 3, None), (2, 3, None), (0, 1, None)]),
    (HOROVOD_ONE_NODE, "horovod", 1, None, None, [(0, 2, 0), (1, 2, 0)]),
]
SHELLS = {
    "sbatch, 2 nodes x 2 tasks": "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0 SLURM_JOB_ID=3 SLURM_JOBID=3 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_NTASKS_PER_NODE=2 SLURM_NNODES=2 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=node[1-2] SLURM_NODELIST=node[1-2] SLURM_TASKS_PER_NODE=2(x2)",
    "sbatch, 1 node": "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0 SLURM_JOB_ID=6 SLURM_JOBID=6 SLURM_NNODES=1 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=node1 SLURM_NODELIST=node1 SLURM_TASKS_PER_NODE=1",
    "salloc": "SLURM_JOB_ID=4 SLURM_JOBID=4 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_NTASKS_PER_NODE=2 SLURM_NNODES=2 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=node[1-2] SLURM_NODELIST=node[1-2] SLURM_TASKS_PER_NODE=2(x2)",
    "salloc with an interactive step": "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0 SLURM_JOB_ID=16 SLURM_JOBID=16 SLURM_STEP_ID=4294967290 SLURM_STEPID=4294967290 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_NTASKS_PER_NODE=2 SLURM_NNODES=2 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=node[1-2] SLURM_NODELIST=node[1-2] SLURM_STEP_NODELIST=node1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_TASKS_PER_NODE=2(x2)",
    "nothing": "",
    "only an address": "MASTER_ADDR=node1 MASTER_PORT=29500",
    "Horovod settings, no world": "HOROVOD_FUSION_THRESHOLD=0 HOROVOD_CONTROLLER=gloo",
    "empty variables": "RANK= WORLD_SIZE= LOCAL_RANK= OMPI_COMM_WORLD_RANK= HOROVOD_RANK= SLURM_STEP_ID= TORCHELASTIC_RUN_ID=",
}
MANUAL = env("RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=node1 MASTER_PORT=29500")
SLURM_RANK_2 = processes(SRUN_2_2)[2]
TORCHRUN_RANK_1 = processes(TORCHRUN)[1]
MPIRUN_RANK_1 = processes(MPIRUN)[1]
HOROVOD_RANK_1 = processes(HOROVOD_3_1)[1]


def some(layout: Layout | None) -> Layout:
    assert layout is not None
    return layout


@pytest.mark.parametrize(("recording", "source", "nnodes", "addr", "port", "places"), WORLDS)
def test_recorded_worlds(
    recording: str, source: str, nnodes: int | None, addr: str | None, port: int | None, places: list[Any]
) -> None:
    layouts = [detect(environ) for environ in processes(recording)]
    assert layouts == [
        Layout(
            rank=rank,
            local_rank=local_rank,
            world_size=len(places),
            nproc_per_node=nproc,
            nnodes=nnodes,
            node_rank=node_rank,
            master_addr=addr,
            master_port=port,
            source=source,
        )
        for rank, (local_rank, nproc, node_rank) in enumerate(places)
    ]


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS.keys())
def test_a_shell_is_no_world(shell: str) -> None:
    assert detect(env(shell)) is None


def test_manual_world_in_a_batch_shell_is_not_compared_with_the_shell() -> None:
    environ = {**env(SHELLS["sbatch, 2 nodes x 2 tasks"]), **MANUAL, "WORLD_SIZE": "2"}
    assert (some(detect(environ)).source, some(detect(environ)).rank) == ("manual", 1)


def test_manual_world_wins_in_a_step_of_one_task() -> None:
    environ = {**processes(SRUN_PTY_ONE_TASK)[0], **MANUAL}
    assert (some(detect(environ)).source, some(detect(environ)).world_size) == ("manual", 4)


@pytest.mark.parametrize(
    ("changes", "expected"),  # expected: (local rank, processes on the node, nodes, node rank)
    [
        ("RANK=3 LOCAL_RANK=1", (1, None, None, None)),
        ("RANK=3 LOCAL_RANK=", (3, None, None, None)),
        ("RANK=3 LOCAL_RANK= MASTER_ADDR=127.0.0.1", (3, 4, 1, 0)),
        ("RANK=3 LOCAL_RANK= MASTER_ADDR=localhost", (3, 4, 1, 0)),
        ("RANK=3 LOCAL_RANK= LOCAL_WORLD_SIZE=2", (1, 2, None, None)),
        ("RANK=3 LOCAL_RANK= LOCAL_WORLD_SIZE=4", (3, 4, 1, 0)),
        ("RANK=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2", (1, 2, 2, 1)),
        # two nodes acted out on one machine are two nodes
        ("RANK=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1", (1, 2, None, None)),
    ],
)
def test_manual_world(changes: str, expected: tuple[int | None, ...]) -> None:
    layout = some(detect({**MANUAL, **env(changes)}))
    assert (layout.local_rank, layout.nproc_per_node, layout.nnodes, layout.node_rank) == expected
    assert (layout.rank, layout.world_size, layout.master_port, layout.source) == (3, 4, 29500, "manual")


@pytest.mark.parametrize(
    ("base", "by_hand"),
    [
        (SLURM_RANK_2, "RANK=2 WORLD_SIZE=4 LOCAL_RANK=0"),
        (SLURM_RANK_2, "WORLD_SIZE=4"),
        (MPIRUN_RANK_1, "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1"),
        (HOROVOD_RANK_1, "RANK=1 WORLD_SIZE=4"),
    ],
)
def test_variables_set_by_hand_may_repeat_the_launcher(base: dict[str, str], by_hand: str) -> None:
    assert detect({**base, **env(by_hand)}) == detect(base)


@pytest.mark.parametrize("base", [SLURM_RANK_2, MPIRUN_RANK_1, HOROVOD_RANK_1])
@pytest.mark.parametrize("given", ["MASTER_ADDR=db7", "MASTER_PORT=4711", "MASTER_ADDR=db7 MASTER_PORT=4711"])
def test_given_address_and_port_win(base: dict[str, str], given: str) -> None:
    before, after = some(detect(base)), some(detect({**base, **env(given)}))
    assert after.master_addr == ("db7" if "ADDR" in given else before.master_addr)
    assert after.master_port == (4711 if "PORT" in given else before.master_port)


def test_rank_0_away_from_the_first_host() -> None:
    rank_0, rank_1, _ = processes(SRUN_ARBITRARY_RANK_0_ON_NODE2)
    with pytest.raises(ValueError, match=r"SLURM_PROCID=0 .*SLURM_NODEID=1.*node\[1-2\].*set MASTER_ADDR"):
        detect(rank_0)
    layout = some(detect({**rank_1, "MASTER_ADDR": "node2"}))
    assert (layout.node_rank, layout.nproc_per_node, layout.master_addr) == (1, 2, "node2")


SLURM_WITHOUT_STEP_VARIABLES = {
    name: text
    for name, text in SLURM_RANK_2.items()
    if not name.startswith("SLURM_STEP_") or name.endswith("_ID")
}
CONTRADICTIONS: list[tuple[dict[str, str], str, list[str]]] = [
    # changes to a recorded environment; NAME= unsets
    (MANUAL, "WORLD_SIZE=", ["WORLD_SIZE is not set", "RANK=1", "MASTER_PORT for every process"]),
    (MANUAL, "RANK=", ["RANK is not set", "WORLD_SIZE=4"]),
    (MANUAL, "RANK= WORLD_SIZE=", ["RANK is not set", "LOCAL_RANK=1"]),
    (MANUAL, "RANK=4", ["RANK=4 must be less than WORLD_SIZE=4"]),
    (MANUAL, "RANK=0 WORLD_SIZE=0", ["RANK=0 must be less than WORLD_SIZE=0"]),
    (MANUAL, "RANK=-1", ["RANK=-1 is not an integer of at least 0"]),
    (MANUAL, "RANK=one", ["RANK=one is not an integer"]),
    (MANUAL, "WORLD_SIZE=4.0", ["WORLD_SIZE=4.0 is not an integer"]),
    (MANUAL, "LOCAL_RANK=0x1", ["LOCAL_RANK=0x1 is not an integer"]),
    (MANUAL, "LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", ["LOCAL_RANK=2 must be less than LOCAL_WORLD_SIZE=2"]),
    (MANUAL, "LOCAL_RANK=4 MASTER_ADDR=127.0.0.1", ["LOCAL_RANK=4 must be less than nproc_per_node=4"]),
    (MANUAL, "LOCAL_WORLD_SIZE=8", ["WORLD_SIZE=4 does not fit LOCAL_WORLD_SIZE=8;"]),
    (MANUAL, "LOCAL_WORLD_SIZE=2 GROUP_WORLD_SIZE=2", ["GROUP_RANK is not set", "GROUP_WORLD_SIZE=2"]),
    (MANUAL, "LOCAL_WORLD_SIZE=2 GROUP_RANK=0", ["GROUP_WORLD_SIZE is not set", "GROUP_RANK=0"]),
    (MANUAL, "GROUP_RANK=0 GROUP_WORLD_SIZE=2", ["LOCAL_WORLD_SIZE is not set", "GROUP_RANK=0"]),
    (MANUAL, "MASTER_ADDR=", ["MASTER_ADDR is not set", "RANK=1"]),
    (MANUAL, "MASTER_PORT=", ["MASTER_PORT is not set", "WORLD_SIZE=4"]),
    (MANUAL, "MASTER_PORT=0", ["MASTER_PORT=0 is not a port"]),
    (MANUAL, "MASTER_PORT=65536", ["MASTER_PORT=65536 is not a port"]),
    (MANUAL, "MASTER_PORT=tcp", ["MASTER_PORT=tcp is not a port"]),
    (TORCHRUN_RANK_1, "RANK=", ["RANK is not set", "TORCHELASTIC_RUN_ID=none", "unset TORCHELASTIC_RUN_ID"]),
    (TORCHRUN_RANK_1, "LOCAL_WORLD_SIZE=", ["LOCAL_WORLD_SIZE is not set", "torchrun"]),
    (TORCHRUN_RANK_1, "MASTER_ADDR=", ["MASTER_ADDR is not set", "torchrun"]),
    (TORCHRUN_RANK_1, "RANK=2", ["RANK=2 must be less than WORLD_SIZE=2"]),
    (TORCHRUN_RANK_1, "LOCAL_RANK=2", ["LOCAL_RANK=2 must be less than LOCAL_WORLD_SIZE=2"]),
    (TORCHRUN_RANK_1, "GROUP_RANK=1", ["GROUP_RANK=1 must be less than GROUP_WORLD_SIZE=1"]),
    (
        TORCHRUN_RANK_1,
        "WORLD_SIZE=4",
        ["WORLD_SIZE=4 does not fit LOCAL_WORLD_SIZE=2 and GROUP_WORLD_SIZE=1"],
    ),
    (TORCHRUN_RANK_1, "GROUP_WORLD_SIZE=2", ["WORLD_SIZE=2 does not fit", "GROUP_WORLD_SIZE=2"]),
    (SLURM_RANK_2, "RANK=3 WORLD_SIZE=4", ["RANK=3", "SLURM_PROCID=2", "unset RANK"]),
    (SLURM_RANK_2, "WORLD_SIZE=8", ["WORLD_SIZE=8", "SLURM_STEP_NUM_TASKS=4", "unset WORLD_SIZE"]),
    (SLURM_RANK_2, "LOCAL_RANK=1", ["LOCAL_RANK=1", "SLURM_LOCALID=0"]),
    (SLURM_RANK_2, "SLURM_PROCID=", ["SLURM_PROCID is not set", "SLURM_LOCALID=0", "into a container"]),
    (SLURM_RANK_2, "SLURM_PROCID=4", ["SLURM_PROCID=4 must be less than SLURM_STEP_NUM_TASKS=4"]),
    (SLURM_RANK_2, "SLURM_LOCALID=2", ["SLURM_LOCALID=2 must be less than SLURM_STEP_TASKS_PER_NODE=2(x2)"]),
    (SLURM_RANK_2, "SLURM_NODEID=2", ["SLURM_NODEID=2 must be less than SLURM_STEP_NUM_NODES=2"]),
    (
        SLURM_RANK_2,
        "SLURM_STEP_TASKS_PER_NODE=2,1",
        ["SLURM_STEP_TASKS_PER_NODE=2,1", "SLURM_STEP_NUM_TASKS=4"],
    ),
    (SLURM_RANK_2, "SLURM_STEP_TASKS_PER_NODE=4", ["SLURM_STEP_TASKS_PER_NODE=4", "SLURM_STEP_NUM_NODES=2"]),
    (SLURM_RANK_2, "SLURM_STEP_TASKS_PER_NODE=2x2", ["SLURM_STEP_TASKS_PER_NODE=2x2", "2(x3),1"]),
    (SLURM_RANK_2, "SLURM_STEP_NODELIST=node[1-3]", ["SLURM_STEP_NODELIST=node[1-3] has 3 hosts"]),
    (SLURM_RANK_2, "SLURM_STEP_NODELIST=node[1-", ["malformed host list 'node[1-'"]),
    (SLURM_RANK_2, "SLURM_JOB_ID= SLURM_JOBID=", ["SLURM_JOB_ID or SLURM_JOBID is not set"]),
    (SLURM_RANK_2, "MASTER_PORT=70000", ["MASTER_PORT=70000"]),
    # a container that got SLURM_PROCID but not the step; a job's variables for a smaller step
    (SLURM_RANK_2, "SLURM_STEP_ID= SLURM_STEPID=", ["SLURM_PROCID=2", "SLURM_STEP_ID", "into a container"]),
    (SLURM_WITHOUT_STEP_VARIABLES, "SLURM_NTASKS=2", ["SLURM_TASKS_PER_NODE=2(x2)", "SLURM_NTASKS=2"]),
    ({}, SHELLS["sbatch, 2 nodes x 2 tasks"] + " WORLD_SIZE=4", ["RANK is not set", "WORLD_SIZE=4"]),
    (MPIRUN_RANK_1, "OMPI_COMM_WORLD_SIZE=", ["OMPI_COMM_WORLD_SIZE is not set", "OMPI_COMM_WORLD_RANK=1"]),
    (MPIRUN_RANK_1, "OMPI_COMM_WORLD_LOCAL_RANK=", ["OMPI_COMM_WORLD_LOCAL_RANK is not set", "mpirun"]),
    (MPIRUN_RANK_1, "OMPI_COMM_WORLD_RANK=2", ["OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=2"]),
    (
        MPIRUN_RANK_1,
        "OMPI_COMM_WORLD_LOCAL_SIZE=1",
        ["OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=1"],
    ),
    (
        MPIRUN_RANK_1,
        "OMPI_COMM_WORLD_LOCAL_SIZE=3",
        ["OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_SIZE=3"],
    ),
    (MPIRUN_RANK_1, "RANK=0 WORLD_SIZE=2", ["RANK=0", "OMPI_COMM_WORLD_RANK=1"]),
    (HOROVOD_RANK_1, "HOROVOD_SIZE=", ["HOROVOD_SIZE is not set", "HOROVOD_RANK=1", "horovodrun"]),
    (HOROVOD_RANK_1, "HOROVOD_RANK=x", ["HOROVOD_RANK=x is not an integer"]),
    (HOROVOD_RANK_1, "HOROVOD_RANK=4", ["HOROVOD_RANK=4 must be less than HOROVOD_SIZE=4"]),
    (HOROVOD_RANK_1, "WORLD_SIZE=2", ["WORLD_SIZE=2", "HOROVOD_SIZE=4"]),
]


@pytest.mark.parametrize(("base", "changes", "said"), CONTRADICTIONS)
def test_contradictions_name_the_variables(base: dict[str, str], changes: str, said: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        detect({**base, **env(changes)})
    assert [part for part in said if part not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_job_variables_stand_in_for_missing_step_variables() -> None:
    assert detect(SLURM_WITHOUT_STEP_VARIABLES) == detect(SLURM_RANK_2)


def fake_scontrol(folder: Path, body: str) -> dict[str, str]:
    program = folder / "scontrol"
    program.write_text(body)
    program.chmod(0o755)
    return {**SLURM_RANK_2, "PATH": str(folder), "BODY": "seen"}


def test_scontrol_is_asked_where_it_is_on_path(tmp_path: Path) -> None:
    environ = fake_scontrol(tmp_path, '#!/bin/sh\necho "$1-$2-$3-$BODY"\necho other\n')
    assert some(detect(environ)).master_addr == "show-hostnames-node[1-2]-seen"


@pytest.mark.parametrize(
    "body",
    [
        "#!/bin/sh\necho wrong\nexit 1\n",
        "#!/bin/sh\n",
        "#!/no/such/interpreter\n",
        "#!/bin/sh\nexec /bin/sleep 60\n",
    ],
    ids=["fails", "says nothing", "cannot start", "hangs"],
)
def test_own_parser_where_scontrol_fails(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostlist, "_SCONTROL_TIMEOUT_S", 0.5)
    assert some(detect(fake_scontrol(tmp_path, body))).master_addr == "node1"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node7", "node7"),
        ("login", "login"),
        ("a.b-c_d", "a.b-c_d"),
        ("node[0-3]", "node0 node1 node2 node3"),
        ("node[098-102]", "node098 node099 node100 node101 node102"),
        ("node[08-10]", "node08 node09 node10"),
        ("node[99-101]", "node99 node100 node101"),
        ("node[01-3]", "node01 node02 node03"),
        ("node[9-010]", "node9 node10"),
        ("node[001,2]", "node001 node2"),
        ("node[5]", "node5"),
        ("node[1,3]", "node1 node3"),
        ("node[1-3,2]", "node1 node2 node3 node2"),
        ("a1,b[2-3]", "a1 b2 b3"),
        ("b[2-3],a1", "b2 b3 a1"),
        ("a[1-2][3-4]", "a13 a14 a23 a24"),
        # the rest is refused or misread by the scontrol above, but found in other versions' lists
        ("n[1-2]-ib0,m", "n1-ib0 n2-ib0 m"),
        ("a[1-2]b[3-4]c", "a1b3c a1b4c a2b3c a2b4c"),
        (
            "gpu-[1,3-5]-[a01-a02]",
            "gpu-1-a01 gpu-1-a02 gpu-3-a01 gpu-3-a02 gpu-4-a01 gpu-4-a02 gpu-5-a01 gpu-5-a02",
        ),
    ],
)
def test_hostlists(text: str, hosts: str) -> None:
    """Down to ``a[1-2][3-4]`` the answers are those of ``scontrol show hostnames`` of Slurm 22.05."""
    assert expand_hostlist(text) == hosts.split()


MALFORMED = """
    , a, ,a a,,b a[1-2 a1] a]1[ a[1-2]] a[[1-2]] a[1[2]] a[1,2 a,b] a[] a[,] a[1,,2] a[1-] a[-1] a[3-1] a[x] a[a-c]
    a[1-2-3] a[a1-b2] a[a1-2] a[1-a2] a[0-99999999999] a[0-65536]
"""


@pytest.mark.parametrize("text", ["", "a b", "a[1- 2]", *MALFORMED.split()])
def test_malformed_hostlists(text: str) -> None:
    with pytest.raises(ValueError, match="malformed host list") as caught:
        expand_hostlist(text)
    assert repr(text) in str(caught.value)


def compress(numbers: list[int], width: int) -> str:
    """Write ``numbers`` in brackets, as runs of neighbours."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = [f"{run[0]:0{width}}" + (f"-{run[-1]:0{width}}" if len(run) > 1 else "") for run in runs]
    return f"[{','.join(text)}]"


LETTERS = st.text("abz-_.", max_size=3)
BRACKET = st.tuples(st.lists(st.integers(0, 1200), min_size=1, max_size=6), st.integers(1, 4))


@st.composite
def groups(draw: st.DrawFn) -> tuple[str, list[str]]:
    """One element of a host list and the names that it stands for."""
    text, names = "n", ["n"]
    for numbers, width in draw(st.lists(BRACKET, max_size=2)):
        between = draw(LETTERS)
        text += compress(numbers, width) + between
        names = [name + str(number).zfill(width) + between for name in names for number in numbers]
    return text, names


@given(st.lists(groups(), min_size=1, max_size=4))
def test_compressed_hostlists_expand_to_the_hosts(parts: list[tuple[str, list[str]]]) -> None:
    assert expand_hostlist(",".join(text for text, _ in parts)) == [
        name for _, names in parts for name in names
    ]


@given(st.integers(0, 2**32), st.integers(0, 0xFFFFFFEF))
def test_slurm_ports_stay_clear_of_other_users(job: int, step: int) -> None:
    port = slurm_port(job, step)
    assert 1024 < port < 29500  # 29500 is torchrun's; ephemeral ports start at 32768
    assert port == slurm_port(job, step)


@given(st.integers(0, 10**8))
def test_slurm_ports_differ_between_steps_and_neighbouring_jobs(job: int) -> None:
    ports = [slurm_port(job + other, step) for other in range(20) for step in range(100)]
    assert len(set(ports)) == len(ports)


class Spy(dict[str, str]):
    """An environment that notes which variables are looked at."""

    looked_at: set[str]

    def __init__(self, environ: dict[str, str]) -> None:
        super().__init__(environ)
        self.looked_at = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.looked_at.add(name)
        return super().get(name, default)


def all_recorded() -> Iterator[dict[str, str]]:
    yield MANUAL
    yield from (environ for recording, *_ in WORLDS for environ in processes(recording))
    yield from (env(shell) for shell in SHELLS.values())


def test_variables_seen_has_everything_that_detect_looks_at() -> None:
    spies = [Spy(environ) for environ in all_recorded()]
    for spy in spies:
        detect(spy)
    looked_at = set().union(*(spy.looked_at for spy in spies)) - {"PATH"}
    assert "SLURM_STEP_NODELIST" in looked_at
    assert set(variables_seen(dict.fromkeys(looked_at, "x"))) == looked_at


def test_variables_seen_leaves_out_the_rest() -> None:
    environ = {
        "SLURM_PROCID": "0",
        "RANK": "1",
        "HOME": "/root",
        "SLURM_JOB_USER": "me",
        "HOROVOD_CROSS_RANK": "0",
    }
    assert variables_seen(environ) == {"HOROVOD_CROSS_RANK": "0", "RANK": "1", "SLURM_PROCID": "0"}
    assert list(variables_seen(environ)) == ["HOROVOD_CROSS_RANK", "RANK", "SLURM_PROCID"]


def test_detect_does_not_look_at_the_real_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fake_scontrol(tmp_path, "#!/bin/sh\necho real\necho other\n")
    for name, text in {**real, **MANUAL}.items():
        monkeypatch.setenv(name, text)
    assert detect({}) is None
    assert some(detect(SLURM_RANK_2)).master_addr == "node1"

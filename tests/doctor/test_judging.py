"""From facts to findings, without a machine: every fact that bites is planted."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from reference.doctor import launch, machine, network, programs, software
from reference.doctor.finding import Finding, size, worst
from reference.doctor.text import closing, duration, rate

INTERFACES = {
    "lo": ["127.0.0.1", "::1"],
    "docker0": ["172.17.0.1"],
    "eth0": ["10.0.0.5"],
    "ib0": ["10.1.0.5"],
}
NETWORK = network.Network(
    name="box", addresses=("10.0.0.5",), unresolved=None, interfaces=INTERFACES, interface="eth0", variables={},
    busy=(), free_port=40000, port_range="32768-60999",
)  # fmt: skip
MACHINE = machine.Machine(
    host="box", system="Linux", user="ada", uid=1000, container=None, processor="cpu", cores=8, usable_cores=8,
    core_quota=None, memory=2**36, memory_limit=None, memory_available=2**35, shm=2**35, shm_writable=True,
    temporary="/tmp", home_writable=True, limits={"open files": (65536, None), "locked memory": (None, None)}, rdma=(),
)  # fmt: skip
SOFTWARE = software.Software(
    python="3.11.7", executable="/bin/python", versions={"torch": "2.14.1"}, cuda="13.0", nccl="2.27",
    missing={"gloo": None, "nccl": None}, horovod_built=(), gpus=(), gpu_error=None, visible_gpus=0, hidden=None, tpus=0,
)  # fmt: skip
GPU = software.Gpu(name="H200", memory="143771 MiB", driver="570.1", mode="Default")


def one(findings: list[Finding], name: str) -> Finding:
    (found,) = [finding for finding in findings if finding.name == name]
    return found


def of_network(name: str, **changes: Any) -> Finding:
    return one(network.judge(dataclasses.replace(NETWORK, **changes)), name)


def of_machine(name: str, **changes: Any) -> Finding:
    return one(machine.judge(dataclasses.replace(MACHINE, **changes)), name)


def of_software(name: str, **changes: Any) -> Finding:
    return one(software.judge(dataclasses.replace(SOFTWARE, **changes)), name)


def test_facts_that_are_fine_are_ok() -> None:
    assert worst([*network.judge(NETWORK), *machine.judge(MACHINE), *software.judge(SOFTWARE)]) == "ok"
    assert closing(network.judge(NETWORK)) == "nothing that will bite"


@pytest.mark.parametrize("address", ["127.0.1.1", "127.0.0.1", "::1", "::ffff:127.0.1.1"])
def test_own_name_that_leads_to_loopback(address: str) -> None:
    """Debian's line in /etc/hosts: `127.0.1.1 box`."""
    alone = of_network("own name", addresses=(address, "10.0.0.5"))
    assert alone.level == "note" and alone.text.endswith(": set GLOO_SOCKET_IFNAME=eth0")
    assert of_network("own name", addresses=(address,), nnodes=2).level == "problem"
    assert of_network("own name", addresses=(address,), nnodes=None).level == "note"
    chosen = of_network("own name", addresses=(address,), nnodes=2, variables={"GLOO_SOCKET_IFNAME": "eth0"})
    assert chosen.level == "ok"


def test_own_name_that_leads_to_loopback_only_later() -> None:
    assert of_network("own name", addresses=("10.0.0.5", "127.0.1.1")).level == "ok"


def test_own_name_that_does_not_resolve() -> None:
    found = of_network("own name", addresses=(), unresolved="Name or service not known")
    assert found.level == "note"
    assert "torchrun --standalone hangs" in found.text and "--add-host box:127.0.0.1" in found.text


@pytest.mark.parametrize(
    ("variable", "value", "level"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", "ok"),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0", "ok"),
        ("GLOO_SOCKET_IFNAME", "eth", "problem"),
        ("GLOO_SOCKET_IFNAME", "eth1", "problem"),
        ("NCCL_SOCKET_IFNAME", "eth", "ok"),  # a beginning
        ("NCCL_SOCKET_IFNAME", "=eth", "problem"),
        ("NCCL_SOCKET_IFNAME", "^docker0,lo", "ok"),
        ("NCCL_SOCKET_IFNAME", "ens", "problem"),
        ("HOROVOD_GLOO_IFACE", "lo", "ok"),
    ],
)
def test_the_interface_that_a_variable_names(variable: str, value: str, level: str) -> None:
    assert of_network(variable, variables={variable: value}).level == level


def test_loopback_does_not_lead_to_other_hosts() -> None:
    found = of_network("GLOO_SOCKET_IFNAME", variables={"GLOO_SOCKET_IFNAME": "lo"}, nnodes=2)
    assert found.level == "problem" and "use one of docker0, eth0, ib0" in found.text


def test_the_interface_without_a_route() -> None:
    assert network.best_interface(INTERFACES) == "eth0"
    assert network.best_interface({"lo": ["127.0.0.1"], "docker0": ["172.17.0.1"]}) == "docker0"
    assert network.best_interface({"lo": ["127.0.0.1"], "eth1": []}) is None


def test_ports() -> None:
    assert of_network("port 29500", busy=(29500,)).level == "note"
    assert of_network("port 29500", busy=(29500,), meeting=29500).level == "problem"
    assert of_network("port 12345", busy=(12345,), meeting=12345).level == "problem"
    assert of_network("port 12345", meeting=12345).level == "ok"


@pytest.mark.parametrize(
    ("name", "changes", "level", "words"),
    [
        ("/dev/shm", {"shm": 2**26}, "note", "64 MiB: loader workers and NCCL stop when it is full"),
        ("/dev/shm", {"shm": 2**26}, "note", "mount -o remount,size=1g /dev/shm"),
        ("/dev/shm", {"shm": 2**26, "container": "docker"}, "note", "docker run --shm-size=1g"),
        ("/dev/shm", {"shm": None}, "problem", "is missing"),
        ("/dev/shm", {"shm_writable": False}, "problem", "is not writable"),
        ("user", {"user": None}, "note", "1000 has no name here"),
        ("cores", {"core_quota": 1.5}, "note", "a quota of 1.5"),
        ("cores", {"usable_cores": 1}, "note", "1 of 8"),
        ("memory", {"memory_limit": 2**30}, "note", "1.0 GiB (the limit here; the machine has 64.0 GiB)"),
        ("temporary files", {"temporary": None}, "problem", "set TMPDIR"),
        ("home", {"home_writable": False}, "note", "set HOME"),
        ("ulimit -n", {"limits": {"open files": (1024, 524288)}}, "note", "ulimit -n 65536"),
        ("ulimit -n", {"limits": {"open files": (1024, 2048)}}, "note", "ulimit -n 2048"),
        ("ulimit -n", {"limits": {"open files": (1024, 1024)}}, "note", "ask who starts this"),
        ("ulimit -u", {"limits": {"processes": (512, None)}}, "note", "ulimit -u 65536"),
        ("ulimit -l", {"limits": {"locked memory": (65536, None)}}, "ok", "64 KiB"),
        ("ulimit -l", {"limits": {"locked memory": (65536, None)}, "rdma": ("mlx5_0",)}, "note", "ulimit -l unlimited"),
    ],
)  # fmt: skip
def test_machine(name: str, changes: dict[str, Any], level: str, words: str) -> None:
    found = of_machine(name, **changes)
    assert found.level == level and words in found.text


@pytest.mark.parametrize(
    ("name", "changes", "level", "words"),
    [
        ("gpus", {"gpus": (GPU, GPU), "visible_gpus": 2}, "ok", "2 x H200 (143771 MiB), driver 570.1"),
        ("gpus", {"gpus": (GPU,), "hidden": ""}, "problem", "CUDA_VISIBLE_DEVICES= hides them: unset it"),
        ("gpus", {"gpus": (GPU,), "cuda": None}, "problem", "this torch is built for CPUs"),
        ("gpus", {"gpus": (GPU,)}, "problem", "the driver is too old or not reachable"),
        ("gpus", {"gpus": (GPU, GPU), "visible_gpus": 1, "hidden": "1"}, "ok", "torch sees 1 (CUDA_VISIBLE_DEVICES=1)"),
        ("gpus", {"gpus": (GPU, GPU), "visible_gpus": 2, "processes": 4}, "note", "start 2 a node"),
        ("gpus", {"gpus": (GPU, GPU), "visible_gpus": 1, "processes": 2, "hidden": "0"}, "ok", "torch sees 1"),
        ("gpus", {"gpu_error": "no answer within 15 s"}, "note", "nvidia-smi fails (no answer within 15 s)"),
        ("backend horovod", {"missing": {"horovod": "it does not load with"}}, "note", "not here: it does not load"),
        ("backend horovod", {"missing": {"horovod": None}, "visible_gpus": 1, "horovod_built": ("gloo",)}, "note", "on the CPU only"),
        ("backend mpi", {"missing": {"mpi": "no MPI"}}, "ok", "not here: no MPI"),
        ("tpu", {"tpus": 4}, "ok", "4 TPU chips"),
    ],
)  # fmt: skip
def test_software(name: str, changes: dict[str, Any], level: str, words: str) -> None:
    found = of_software(name, **changes)
    assert found.level == level and words in found.text


WORLD = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("variables", "level", "words"),
    [
        ({}, "ok", "not set: a process uses all its cores"),
        (
            WORLD,
            "note",
            "4 processes each start a thread for every core and slow each other down: set it to 2",
        ),
        ({**WORLD, "OMP_NUM_THREADS": "2"}, "ok", "2"),
        ({**WORLD, "OMP_NUM_THREADS": "4"}, "note", "more threads than the 8 cores: set it to 2"),
        ({"OMP_NUM_THREADS": "many"}, "note", "'many' is no number, and is ignored"),
        ({"OMP_NUM_THREADS": "4,2"}, "ok", "4,2"),
    ],
)
def test_threads(variables: dict[str, str], level: str, words: str) -> None:
    found = one(launch.judge(launch.look(variables, cores=8)), "OMP_NUM_THREADS")
    assert found.level == level and words in found.text


def test_settings_are_shown_and_secrets_are_not() -> None:
    environ = {
        "NCCL_DEBUG": "INFO",
        "CUDA_LAUNCH_BLOCKING": "1",
        "HOROVOD_SECRET_KEY": "x",
        "TPU_API_TOKEN": "x",
        "HOME": "/x",
    }
    found = launch.judge(launch.look(environ, cores=8))
    assert [finding.name for finding in found] == [
        "layout",
        "OMP_NUM_THREADS",
        "CUDA_LAUNCH_BLOCKING",
        "NCCL_DEBUG",
    ]
    assert one(found, "CUDA_LAUNCH_BLOCKING").level == "note"


def test_the_layout_and_its_source() -> None:
    found = one(launch.judge(launch.look(WORLD, cores=8)), "layout")
    assert found.text.startswith(
        "rank 1 of 4, local rank 1 of 4, node 0 of 1, by the variables of manual, meeting at 127"
    )
    assert found.value["world_size"] == 4 and not found.shared


def test_engines_and_slurm_that_do_not_answer() -> None:
    docker = programs.Program(name="docker", version="28.2", failed="Cannot connect")
    slurm = programs.Program(name="slurm", version="22.05", failed="no answer within 10 s")
    facts = programs.Programs(engines=(docker,), slurm=slurm, partitions=(), others=(), gpus=False)
    found = programs.judge(facts)
    assert one(found, "docker").level == one(found, "slurm").level == "note"
    assert "(Cannot connect): start its daemon" in one(found, "docker").text


def test_numbers_for_people() -> None:
    assert [size(n) for n in (8, 2048, 2**26, 3 * 2**30)] == ["8 B", "2 KiB", "64 MiB", "3.0 GiB"]
    assert [duration(s) for s in (0.0000123, 0.00123, 1.5)] == ["12.3 µs", "1.23 ms", "1.5 s"]
    assert [rate(b) for b in (0, 1500, 2.5e6, 1.2e10)] == ["-", "1.5 kB/s", "2.5 MB/s", "12 GB/s"]

"""This machine, or container: cores, memory, shared memory, limits, who we are."""

from __future__ import annotations

import os
import platform
import pwd
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from reference.doctor.finding import NOTE, PROBLEM, Finding, size

SECTION = "machine"
_SHM_LOW = 512 * 2**20  # bytes; Docker gives 64 MiB
_MEMORY_LOW = 2 * 2**30  # bytes for a process that trains
_FILES_LOW = 4096  # open files of a process
_PROCESSES_LOW = 4096  # processes and threads of a user
_LIMITS = {"open files": "NOFILE", "processes": "NPROC", "locked memory": "MEMLOCK", "stack": "STACK"}
_UNLIMITED = 2**62  # what a limit above this means


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Facts about the machine. Sizes in bytes; None: unlimited, or not to be found here."""

    host: str
    system: str
    user: str | None  # None: neither the id nor the environment tells a name
    uid: int
    container: str | None  # the kind of container we are in
    processor: str
    cores: int  # logical, of the machine
    usable_cores: int  # those that this process may run on
    core_quota: float | None  # of the container or job (cgroup)
    memory: int
    memory_limit: int | None  # of the container or job (cgroup)
    memory_available: int
    shm: int | None  # of /dev/shm
    shm_writable: bool
    temporary: str | None  # a folder for temporary files
    home_writable: bool
    limits: dict[str, tuple[int | None, int | None]]  # soft and hard
    rdma: tuple[str, ...]  # InfiniBand or RoCE devices


def look(environ: Mapping[str, str]) -> Machine:
    """Facts about the machine that this runs on, for a process with this environment."""
    memory = psutil.virtual_memory()
    try:
        user: str | None = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = environ.get("LOGNAME") or environ.get("USER")  # where getpass looks as well
    return Machine(
        host=platform.node(),
        system=f"{_system()}, Linux {platform.release()}, {platform.machine()}",
        user=user,
        uid=os.getuid(),
        container=_container(),
        processor=_processor(),
        cores=os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)),
        core_quota=_core_quota(),
        memory=memory.total,
        memory_limit=_memory_limit(memory.total),
        memory_available=memory.available,
        shm=_total("/dev/shm"),
        shm_writable=os.access("/dev/shm", os.W_OK | os.X_OK),
        temporary=_temporary(),
        home_writable=os.access(os.path.expanduser("~"), os.W_OK | os.X_OK),
        limits={name: _limit(f"RLIMIT_{suffix}") for name, suffix in _LIMITS.items()},
        rdma=tuple(sorted(p.name for p in Path("/sys/class/infiniband").glob("*"))),
    )


def judge(facts: Machine) -> list[Finding]:
    """One finding for each fact."""
    return [
        _host(facts),
        _user(facts),
        _cores(facts),
        _memory(facts),
        _shm(facts),
        *_folders(facts),
        *_limits(facts),
    ]


def effective_cores(facts: Machine) -> float:
    """Cores that this process can keep busy."""
    return min(facts.usable_cores, facts.core_quota or facts.usable_cores)


def _finding(name: str, value: object, text: str, level: str = "ok", shared: bool = True) -> Finding:
    return Finding(section=SECTION, name=name, value=value, text=text, level=level, shared=shared)


def _host(facts: Machine) -> Finding:
    where = f", in a container ({facts.container})" if facts.container else ""
    return _finding("host", facts.host, f"{facts.host}: {facts.system}{where}", shared=False)


def _user(facts: Machine) -> Finding:
    if facts.user:
        return _finding("user", facts.user, f"{facts.user} ({facts.uid})")
    bites = f"{facts.uid} has no name here: programs that ask for it fail: set USER and HOME, or mount /etc/passwd"
    return _finding("user", facts.uid, bites, NOTE)


def _cores(facts: Machine) -> Finding:
    text, value = f"{facts.usable_cores} of {facts.cores} ({facts.processor})", f"{effective_cores(facts):g}"
    if facts.core_quota is not None and facts.core_quota < facts.usable_cores:
        text += f", but a quota of {facts.core_quota:g}: programs that count cores start too many threads"
        return _finding("cores", value, f"{text}: set OMP_NUM_THREADS, or --threads of the trainer", NOTE)
    if effective_cores(facts) < 2:
        return _finding("cores", value, f"{text}: processes and loader workers share one", NOTE)
    return _finding("cores", value, text)


def _memory(facts: Machine) -> Finding:
    total = min(facts.memory, facts.memory_limit or facts.memory)
    limit = f" (the limit here; the machine has {size(facts.memory)})" if total < facts.memory else ""
    free = min(facts.memory_available, total)
    text, value = f"{size(total)}{limit}, {size(free)} of it free", f"{total / 2**30:.1f} GiB"
    if free < _MEMORY_LOW:
        return _finding(
            "memory", value, f"{text}: a process that trains needs about 1 GiB: start fewer (NP=1)", NOTE
        )
    return _finding("memory", value, text)


def _shm(facts: Machine) -> Finding:
    name = "/dev/shm"
    if facts.shm is None or not facts.shm_writable:
        what = "is missing" if facts.shm is None else "is not writable"
        mend = "mount a tmpfs there (docker run --shm-size=1g; --tmpfs /dev/shm)"
        return _finding(name, facts.shm, f"{what}: loader workers and NCCL stop: {mend}", PROBLEM)
    text, value = size(facts.shm), size(facts.shm)
    if facts.shm < _SHM_LOW:
        mend = "docker run --shm-size=1g" if facts.container else "mount -o remount,size=1g /dev/shm"
        text += f": loader workers and NCCL stop when it is full (bus error): {mend}, or --num_workers=0"
        return _finding(name, value, text, NOTE)
    return _finding(name, value, text)


def _folders(facts: Machine) -> Iterator[Finding]:
    if facts.temporary is None:
        mend = "set TMPDIR to a folder that is, or docker run --tmpfs /tmp"
        yield _finding("temporary files", None, f"no folder is writable: many programs stop: {mend}", PROBLEM)
    else:
        yield _finding("temporary files", facts.temporary, f"in {facts.temporary}")
    if facts.home_writable:
        yield _finding("home", True, "writable")
    else:
        yield _finding(
            "home", False, "not writable: caches can't be kept there: set HOME or XDG_CACHE_HOME", NOTE
        )


def _limits(facts: Machine) -> Iterator[Finding]:
    for name, (soft, hard) in facts.limits.items():
        option = {"open files": "-n", "processes": "-u", "locked memory": "-l", "stack": "-s"}[name]
        show = size if name in ("locked memory", "stack") else str
        text = f"{'unlimited' if soft is None else show(soft)} {name}"
        if soft != hard:
            text += f", up to {'unlimited' if hard is None else show(hard)}"
        bites = ""
        if soft is not None and name == "open files" and soft < _FILES_LOW:
            bites = "too few for many loader workers or ranks (too many open files)"
        elif soft is not None and name == "processes" and soft < _PROCESSES_LOW:
            bites = "too few for many threads (resource temporarily unavailable)"
        elif soft is not None and name == "locked memory" and facts.rdma:
            bites = f"{', '.join(facts.rdma)} can't register memory"
        if bites:
            enough = "unlimited" if name == "locked memory" else 65536 if hard is None else min(hard, 65536)
            raising = (
                f"ulimit {option} {enough}" if soft != hard else f"ask who starts this for ulimit {option}"
            )
            text += f": {bites}: {raising}"
        yield _finding(f"ulimit {option}", soft, text, NOTE if bites else "ok")


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return "unknown system"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def _container() -> str | None:
    for file, kind in (
        ("/.dockerenv", "docker"),
        ("/run/.containerenv", "podman"),
        ("/.singularity.d", "apptainer"),
        ("/ch", "charliecloud"),
    ):
        if os.path.exists(file):
            return kind
    return os.environ.get("container") or None  # noqa: SIM112 (systemd's and podman's own spelling)


def _total(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _temporary() -> str | None:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return None


def _limit(name: str) -> tuple[int | None, int | None]:
    soft, hard = (
        None if value == resource.RLIM_INFINITY or value > _UNLIMITED else value
        for value in resource.getrlimit(getattr(resource, name))
    )
    return soft, hard


def _cgroup_files(controller: str, new: str, old: str) -> Iterator[str]:
    """The contents of a limit's file in our cgroup and those above it, in version 2 or 1 of cgroups."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").split()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root, name = (
            (Path("/sys/fs/cgroup", controllers), old) if controllers else (Path("/sys/fs/cgroup"), new)
        )
        here = root / path.lstrip("/")
        for folder in (here, *here.parents):
            if folder.is_relative_to(root) and (folder / name).is_file():
                yield (folder / name).read_text(encoding="utf-8").strip()


def _core_quota() -> float | None:
    quotas = []
    for text in _cgroup_files("cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, _, period = text.partition(" ")
        if quota not in ("max", "-1"):
            quotas.append(int(quota) / int(period or 100_000))  # version 1's usual period
    return min(quotas, default=None)


def _memory_limit(total: int) -> int | None:
    limits = [int(t) for t in _cgroup_files("memory", "memory.max", "memory.limit_in_bytes") if t.isdigit()]
    return min((limit for limit in limits if limit < total), default=None)

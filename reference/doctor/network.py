"""The network: this host's own name, the interface for gloo and NCCL, ports."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from reference.doctor.finding import NOTE, OK, PROBLEM, Finding, within
from reference.idist.environment import Layout

SECTION = "network"
TORCHRUN_PORT = 29500  # torchrun's default, and that of most examples
_DNS = 5.0  # seconds in which a name should resolve
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
_FAR_AWAY = "192.0.2.1"  # reserved for documentation: to ask for the way there sends nothing
_VIRTUAL = (
    "docker",
    "br-",
    "veth",
    "virbr",
    "cni",
    "flannel",
    "podman",
)  # they lead to containers, not to other hosts


@dataclass(frozen=True, kw_only=True)
class Network:
    """Facts about the network."""

    name: str  # of this host
    addresses: tuple[str, ...]  # what it resolves to
    unresolved: str | None  # why it does not
    interfaces: dict[str, list[str]]  # those that are up, with their addresses
    interface: str | None  # towards the other hosts
    variables: dict[str, str]  # those that choose an interface
    busy: tuple[int, ...]  # of the ports that somebody will want
    free_port: int
    port_range: str | None  # from which the system takes ports
    meeting: int | None = None  # the port at which this process is to listen
    nnodes: int | None = 1


def look(environ: Mapping[str, str], layout: Layout | None) -> Network:
    """Facts about the network, as seen by a process of this environment and layout."""
    name = socket.gethostname()
    try:
        addresses, unresolved = within(_DNS, lambda: resolve(name)), None
    except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
        addresses, unresolved = (), getattr(error, "strerror", None) or str(error)
    interfaces = _interfaces()
    towards = layout.master_addr if layout is not None and layout.nnodes != 1 else None
    meeting = None
    if layout is not None and layout.rank == 0 and layout.source in ("manual", "slurm", "openmpi"):
        meeting = layout.master_port  # under torchrun its agent listens there already
    wanted = {TORCHRUN_PORT, *([meeting] if meeting else [])}
    return Network(
        name=name,
        addresses=addresses,
        unresolved=unresolved,
        interfaces=interfaces,
        interface=interface_towards(towards or _FAR_AWAY, interfaces) or best_interface(interfaces),
        variables={key: environ[key] for key in _INTERFACE_VARIABLES if environ.get(key)},
        busy=tuple(sorted(port for port in wanted if is_busy(port))),
        free_port=_free_port(),
        port_range=_port_range(),
        meeting=meeting,
        nnodes=layout.nnodes if layout is not None else 1,
    )


def judge(facts: Network, *, met: bool = False) -> list[Finding]:
    """One finding for each fact; ``met``: the ranks have met already, so that names can't be in their way."""
    return [own_name(facts, met=met), *_chosen(facts), _interface(facts), *_ports(facts)]


def _finding(name: str, value: object, text: str, level: str = OK, shared: bool = False) -> Finding:
    return Finding(section=SECTION, name=name, value=value, text=text, level=level, shared=shared)


def own_name(facts: Network, *, met: bool = False) -> Finding:
    """Gloo listens at the first address of the host's own name, unless an interface is named."""
    value = {"name": facts.name, "addresses": list(facts.addresses)}
    chosen = facts.variables.get("GLOO_SOCKET_IFNAME")
    remedy = f"set GLOO_SOCKET_IFNAME={facts.interface or '<interface>'}"
    level = PROBLEM if facts.nnodes is not None and facts.nnodes > 1 and not met else NOTE
    if not facts.addresses:
        text = f"{facts.name} does not resolve ({facts.unresolved})"
        if chosen:
            return _finding("own name", value, f"{text}; gloo uses {chosen} (GLOO_SOCKET_IFNAME)")
        bites = "torchrun --standalone hangs, and other hosts can't reach gloo here"
        mend = (
            f"add it to /etc/hosts (docker run --add-host {facts.name}:127.0.0.1 for one host), or {remedy}"
        )
        return _finding("own name", value, f"{text}: {bites}: {mend}", level)
    first = facts.addresses[0]
    if not is_loopback(first):
        return _finding("own name", value, f"{facts.name} is {', '.join(facts.addresses)}")
    if chosen:
        return _finding(
            "own name", value, f"{facts.name} is {first}; gloo uses {chosen} (GLOO_SOCKET_IFNAME)"
        )
    bites = "on several hosts gloo tells the others that address, and they can't connect"
    return _finding("own name", value, f"{facts.name} is {first} (loopback): {bites}: {remedy}", level)


def _chosen(facts: Network) -> list[Finding]:
    """The variables that name an interface must name one that is up, and on several hosts one that leads to them."""
    found = []
    outside = [name for name in facts.interfaces if not _is_local(name, facts.interfaces)]
    for variable, value in facts.variables.items():
        text, level = value, OK
        if bad := missing_interfaces(variable, value, facts.interfaces):
            there = ", ".join(facts.interfaces) or "none"
            text += f": no interface {', '.join(bad)} is up: use one of {there}, or unset {variable}"
            level = PROBLEM
        elif (facts.nnodes or 1) > 1 and value in facts.interfaces and value not in outside:
            text += f": it does not lead to the other hosts: use one of {', '.join(outside) or 'none'}"
            level = PROBLEM
        found.append(_finding(variable, value, text, level, shared=True))
    return found


def _interface(facts: Network) -> Finding:
    others = [
        name for name in facts.interfaces if name != facts.interface and not _is_local(name, facts.interfaces)
    ]
    if facts.interface is None:
        return _finding("interface", None, "loopback only: this host can't be one of several", shared=True)
    text = f"{facts.interface} ({', '.join(facts.interfaces.get(facts.interface, [])) or 'no address'})"
    if others:
        text += f"; also up: {', '.join(others)}"
    return _finding("interface", facts.interface, text, shared=True)


def _ports(facts: Network) -> list[Finding]:
    found = []
    for port in dict.fromkeys((TORCHRUN_PORT, facts.meeting)):
        if port is None:
            continue
        if port not in facts.busy:
            found.append(_finding(f"port {port}", "free", "free"))
            continue
        what = "the ranks are to meet there" if port == facts.meeting else "it is torchrun's default"
        text = f"busy, and {what}: take another: MASTER_PORT={facts.free_port}, or torchrun --master-port={facts.free_port}"
        found.append(_finding(f"port {port}", "busy", text, PROBLEM if port == facts.meeting else NOTE))
    text = f"{facts.port_range or 'unknown range'}, for example {facts.free_port} is free"
    found.append(_finding("ports", {"range": facts.port_range, "free": facts.free_port}, text))
    return found


def resolve(name: str) -> tuple[str, ...]:
    """The addresses of a host name, in the order in which gloo tries them. OSError: it has none."""
    answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))


def is_loopback(address: str) -> bool:
    """Whether an address leads to this host only."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def missing_interfaces(variable: str, value: str, interfaces: Mapping[str, Sequence[str]]) -> list[str]:
    """Those that ``variable`` names and that are not up. NCCL's names are beginnings; ``=`` means exact, ``^`` not these."""
    exact = not variable.startswith("NCCL") or value.startswith("=")
    if value.startswith("^"):
        return []
    names = [name for name in value.lstrip("=").split(",") if name]
    if exact:
        return [name for name in names if name not in interfaces]
    return [] if any(up.startswith(name) for up in interfaces for name in names) else names


def interface_towards(address: str, interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """The interface by which packets to ``address`` would leave; None when there is no way, or it is the loopback."""
    try:
        family, kind, protocol, _, place = within(
            _DNS, lambda: socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)
            source = probe.getsockname()[0]
    except OSError:
        return None
    owners = [name for name, addresses in interfaces.items() if source in addresses]
    return next((name for name in owners if not _is_local(name, interfaces)), None)


def best_interface(interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """Where no route tells: the first that is no loopback and does not lead to containers."""
    outside = [name for name in interfaces if not _is_local(name, interfaces)]
    real = [name for name in outside if not name.startswith(_VIRTUAL)]
    return next(iter(real or outside), None)


def is_busy(port: int) -> bool:
    """Whether another process listens at a TCP port of this host."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((address, port))
                probe.listen()
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False


def _is_local(name: str, interfaces: Mapping[str, Sequence[str]]) -> bool:
    addresses = interfaces.get(name, [])
    return not addresses or all(is_loopback(address) for address in addresses)


def _interfaces() -> dict[str, list[str]]:
    """Interfaces that are up, with their IPv4 and IPv6 addresses."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [entry.address.partition("%")[0] for entry in entries if entry.family in families]
        for name, entries in psutil.net_if_addrs().items()
        if name in up
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port


def _port_range() -> str | None:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    except OSError:
        return None
    return re.sub(r"\s+", "-", text.strip())

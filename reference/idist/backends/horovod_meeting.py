"""Where the ranks of a Horovod world meet before Horovod starts, and leave notes when it has failed.

It is the HTTP server that Horovod's own Gloo start needs anyway: horovodrun's, that of the process that spawns, or one in
rank 0's process when another launcher started the ranks.
"""

from __future__ import annotations

import functools
import http.client
import importlib
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from reference.idist.environment import Layout

_NOTE_WAIT = 2.0  # seconds that a rank that failed waits to hear which others did
_ADDRESS, _PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
_joins = itertools.count()  # a process may join one world after the other, in the same order on every rank
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Board:
    """Notes that all ranks of one world can write and read."""

    host: str
    port: int
    world: int

    @property
    def settings(self) -> dict[str, str]:
        """What tells Horovod to meet here."""
        gloo = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
        return {_ADDRESS: self.host, _PORT: str(self.port), **gloo}

    def write(self, key: str, text: str) -> str | None:
        """The text, or None while nobody answers there."""
        return None if self._request("PUT", key, text) is None else text

    def read(self, key: str) -> str | None:
        """The text, or None while nobody has written it."""
        return self._request("GET", key)

    def _request(self, method: str, key: str, body: str | None = None) -> str | None:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=5)
        try:
            connection.request(method, f"/idist.{self.world}/{key}", body)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return text if answer.status == 200 else None


def started_by_gloo() -> bool:
    """Whether horovodrun started this process, with its own server."""
    return bool(os.environ.get(_ADDRESS))


def open_board(layout: Layout) -> Board:
    """The meeting point of a world; opened here when this is rank 0 and nobody else has."""
    if started_by_gloo():
        return Board(host=os.environ[_ADDRESS], port=int(os.environ[_PORT]), world=next(_joins))
    if layout.source == "torchrun":
        raise ValueError(
            "Horovod can't meet under torchrun, which keeps MASTER_PORT: use horovodrun, srun or mpirun"
        )
    if layout.master_addr is None or layout.master_port is None:
        lacking = "MASTER_ADDR" if layout.master_addr is None else "MASTER_PORT"
        how = "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there, or use horovodrun"
        raise ValueError(
            f"Horovod needs a place to meet ({layout.source} tells none): {lacking} is not set; {how}"
        )
    if layout.rank == 0 and layout.source != "spawn":
        _serve_for_good(layout.master_port)
    return Board(host=layout.master_addr, port=layout.master_port, world=next(_joins))


def serve(host: str, port: int) -> Any:
    """Horovod's rendezvous server at a port (0: a free one), in a thread. RuntimeError if the port is busy."""
    module = importlib.import_module("horovod.runner.http.http_server")
    try:
        server = module.RendezvousHTTPServer((host, port), module.RendezvousHandler, 0)
    except OSError as error:
        raise RuntimeError(
            f"horovod: port {port}: {error.strerror}: choose one that is free on this host"
        ) from error
    server.daemon_threads = True
    server.socket.listen(1024)  # all ranks may come at once
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@functools.cache
def _serve_for_good(port: int) -> Any:
    """One server for all worlds of this process: ranks join the next while others still leave the last."""
    return serve("", port)


def meet(board: Board, layout: Layout, timeout: float) -> list[str]:
    """Wait for all ranks. The node of each; RuntimeError names the ranks that did not come in ``timeout`` seconds."""
    rank, size = layout.rank, layout.world_size
    deadline = time.monotonic() + timeout
    pause = 0.02 + size / 1000
    node = os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    if layout.node_rank is not None:
        node = str(layout.node_rank)
    _poll(lambda: board.write(f"rank.{rank}", node), deadline, pause)
    nodes: list[str | None]
    if rank == 0:
        nodes = [
            _poll(functools.partial(board.read, f"rank.{other}"), deadline, pause) for other in range(size)
        ]
        board.write("nodes", json.dumps(nodes))
    else:
        told = _poll(lambda: board.read("nodes"), deadline + _NOTE_WAIT, pause)
        nodes = [None] if told is None else json.loads(told)
    missing = [str(other) for other, node in enumerate(nodes) if node is None]
    if missing:
        where = f"at {board.host}:{board.port} within {timeout:g} s"
        raise RuntimeError(
            f"horovod: rank {rank} of {size} could not meet the others {where}: no word from rank {', '.join(missing)}"
        )
    return [node for node in nodes if node is not None]


def places(rank: int, nodes: Sequence[str]) -> dict[str, str]:
    """How Horovod wants to be told where a rank is, from the node of every rank."""
    mates = {node: [other for other, its in enumerate(nodes) if its == node] for node in nodes}
    local = mates[nodes[rank]]
    local_rank = local.index(rank)
    alike = sorted(
        ranks[local_rank] for ranks in mates.values() if len(ranks) > local_rank
    )  # one on each node
    told = {
        "HOSTNAME": f"node{list(mates).index(nodes[rank])}",
        "RANK": rank,
        "SIZE": len(nodes),
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": len(local),
        "CROSS_RANK": alike.index(rank),
        "CROSS_SIZE": len(alike),
    }
    return {f"HOROVOD_{name}": str(value) for name, value in told.items()}


def check_own_name() -> None:
    """On several nodes Horovod listens at the address of this host's own name: it must not be a loopback one."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        address = str(error)
    if not os.environ.get("HOROVOD_GLOO_IFACE") and (address.startswith("127.") or not address[0].isdigit()):
        how = "set HOROVOD_GLOO_IFACE to the network interface that the nodes share"
        raise RuntimeError(
            f"horovod: other nodes can't reach this one by its own name {name!r} ({address}): {how}"
        )


def silent(board: Board, failure: str, rank: int, members: Sequence[int]) -> str:
    """After a failure that all of ``members`` should notice: those that said nothing, as text to append."""
    if board.write(f"failed.{failure}.{rank}", "failed") is None:
        return " (the rendezvous server is gone)"
    deadline = time.monotonic() + _NOTE_WAIT
    missing = [other for other in members if other != rank]
    while missing and time.monotonic() < deadline:
        time.sleep(0.05)
        missing = [other for other in missing if board.read(f"failed.{failure}.{other}") is None]
    return f" (no word from rank {', '.join(map(str, missing))})" if missing else ""


def _poll(ask: Callable[[], T | None], deadline: float, pause: float) -> T | None:
    while (answer := ask()) is None and time.monotonic() < deadline:
        time.sleep(pause)
    return answer

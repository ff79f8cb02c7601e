"""The XLA backend, on simulated CPU devices where there is no TPU.

Each world runs in a program of its own (this file, see the end), as a process has only one XLA runtime. Its replicas write
what they got to files, which the tests compare with what one process computes.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

import reference.idist as idist
from reference.idist import environment
from reference.idist.backends import xla
from reference.idist.context import current

needs_xla = pytest.mark.skipif(
    importlib.util.find_spec("torch_xla") is None,
    reason="torch_xla is not installed: make env BACKEND=xla-tpu",
)
ROOT = Path(__file__).parents[2]
SECONDS = 400  # of a world, on a busy machine
WORLDS = (1, 2, 4)
REDUCED = (torch.int32, torch.int64, torch.float32, torch.float64)
CARRIED = (*REDUCED, torch.bfloat16, torch.float16, torch.uint8, torch.int16, torch.bool)
FOLD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


# -- what the replicas do ---------------------------------------------------------------------------------------------
def values(rank: int, dtype: torch.dtype) -> Tensor:
    """A rank's tensor; the int64 ones are not representable in float64."""
    generator = torch.Generator().manual_seed(rank)
    if dtype is torch.bool:
        return torch.rand(3, 5, generator=generator) > 0.5
    if dtype.is_floating_point:
        return torch.randn(3, 5, generator=generator, dtype=torch.float64).to(dtype)
    whole = torch.randint(-9, 10, (3, 5), generator=generator) if dtype.is_signed else torch.arange(15) + rank
    return whole.view(3, 5).to(dtype) * (2**53 + 1 if dtype is torch.int64 and rank == 0 else 1)


def groups(count: int) -> dict[str, list[int] | None]:
    return {"all": None, "last": [count - 1], "ends": sorted({0, count - 1})}


def primitives(local_rank: int, folder: str) -> None:
    backend, device, count = current(), idist.device(), idist.get_world_size()
    rank = idist.get_rank()
    got: dict[Any, Any] = {"layout": layout(local_rank)}
    for name, members in groups(count).items():
        group = None if members is None else backend.new_group(members)
        for dtype in REDUCED:
            for op in FOLD:
                x = values(rank, dtype).to(device)
                got["reduce", name, dtype, op] = backend.all_reduce(x, op, group).cpu()
                got["input", name, dtype, op] = x.cpu()
    for dtype in CARRIED:
        x = values(rank, dtype).to(device)
        got["gather", dtype] = backend.all_gather(x, None).cpu()
        got["scalar", dtype] = backend.all_gather(x[0, 0], None).cpu()
        for src in range(count):
            got["broadcast", dtype, src] = backend.broadcast(x, src).cpu()
    work = torch.ones(2, device=device)
    for _ in range(rank):  # not computed yet when the collective comes, and another program on each rank
        work = work * 2 + 1
    got["unequal work"] = (backend.all_reduce(work, "SUM", None) * (rank + 1)).cpu()
    backend.barrier()
    torch.save(got, f"{folder}/{rank}.pt")


def layout(local_rank: int) -> dict[str, Any]:
    return {
        "local_rank": (local_rank, idist.get_local_rank()),
        "rank": idist.get_rank(),
        "world": (
            idist.get_world_size(),
            idist.get_nproc_per_node(),
            idist.get_nnodes(),
            idist.get_node_rank(),
        ),
        "names": (idist.backend(), idist.model_name(), idist.device().type),
    }


def samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(22, 1, 6, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(images, torch.randint(0, 3, (22,), generator=generator))


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    model = nn.Sequential(*layers).double()
    model.register_buffer("limit", torch.tensor([-torch.inf if seed else 1.5]))
    model.register_buffer("mask", torch.tensor([seed == 0, False]))
    model.register_buffer("count", torch.tensor(2**60 + seed))
    return model


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, steps: int, closure: bool
) -> list[Any]:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses, batches = [], iter(loader)
    for _ in range(steps):
        x, y = next(batches)

        def backward(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(backward) if closure else (backward(), optimizer.step())[0]
        scheduler.step()
        losses.append(loss.detach())
    return losses


def training(local_rank: int, folder: str) -> None:
    rank = idist.get_rank()
    model = idist.auto_model(net(rank), sync_bn=True)
    got: dict[str, Any] = {"start": state(model)}
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    optimizer = idist.auto_optim(plain)
    loader = idist.auto_dataloader(samples(), batch_size=4, shuffle=True, seed=7)
    losses = train(model, optimizer, loader, 5, closure=False)  # leaves the loader in the middle
    got["losses"] = [float(idist.all_reduce(loss, "AVERAGE")) for loss in losses]
    got["end"] = state(model)
    got["optimizer"] = isinstance(optimizer, torch.optim.Optimizer), optimizer.param_groups[0]["lr"]
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    got["momentum"] = optimizer.state_dict()["state"][0]["momentum_buffer"].cpu()
    batches = list(loader)
    got["loader"] = len(loader), loader.batch_size, loader.sampler.seed, len(batches)
    got["devices"] = {x.device.type for batch in batches for x in batch}
    got["sizes"] = [len(batch[1]) for batch in batches]
    got["order"] = torch.cat([batch[1] for batch in batches]).cpu()
    torch.save(got, f"{folder}/{rank}.pt")


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.cpu().clone() for name, value in model.state_dict().items()}


def closures(local_rank: int, folder: str) -> None:
    rank = idist.get_rank()
    model = idist.auto_model(nn.Linear(4, 2))
    plain = torch.optim.SGD(model.parameters(), lr=0.5)
    early = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)  # made before the optimizer is wrapped
    optimizer = idist.auto_optim(plain)
    before = state(model)
    x = torch.full((2 + rank, 4), 1.0 + rank).to(idist.device())  # sizes and so programs differ

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    loss = float(optimizer.step(closure))
    early.step()
    torch.save(
        {"before": before, "after": state(model), "loss": loss, "lr": early.get_last_lr()},
        f"{folder}/{rank}.pt",
    )


def random_numbers(local_rank: int, folder: str) -> None:
    time.sleep(0.1 * idist.get_rank())
    torch.manual_seed(idist.get_rank())
    drawn = []
    for _ in range(50):
        drawn += [torch.rand(2), torch.empty(3).normal_(), nn.Linear(2, 2).weight.detach(), torch.randperm(5)]
        time.sleep(0.002)  # the other replicas draw in between
    torch.save(drawn, f"{folder}/{idist.get_rank()}.pt")


class Broken(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 9:
            raise OSError("sample 9 is unreadable")
        return torch.tensor([float(index)]), index


def read_broken(local_rank: int, folder: str) -> None:
    for _ in idist.auto_dataloader(Broken(), batch_size=4, num_workers=2):
        pass


def value_of_rank(local_rank: int, folder: str) -> Any:
    return {"rank": idist.get_rank(), "text": "ü"}


def unpicklable(local_rank: int, folder: str) -> Any:
    return lambda: None


def raise_on_one(local_rank: int, folder: str) -> None:
    idist.barrier()
    if local_rank == 1:
        raise KeyError("replica one has had enough")
    time.sleep(10 * SECONDS)


def killed(local_rank: int, folder: str) -> None:
    if local_rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(10 * SECONDS)


def stay_away(local_rank: int, folder: str) -> None:
    if local_rank == 1:
        time.sleep(10 * SECONDS)
    idist.all_reduce(1.5)


def one(folder: str) -> None:
    """A world of one in this process, from initialize to finalize."""
    before = idist.backend(), "torch_xla" in sys.modules
    idist.initialize("xla-tpu")
    inside = (
        layout(0),
        idist.all_reduce(2**70),
        idist.broadcast(torch.ones(2, device=idist.device())).device.type,
    )
    with pytest.raises(ValueError, match="start_method='fork': XLA's runtime is in use"):
        idist.spawn("xla-tpu", value_of_rank, (folder,), nproc_per_node=2, start_method="fork")
    idist.finalize()
    torch.save({"before": before, "inside": inside, "after": idist.backend()}, f"{folder}/one.pt")


def launched(index: int, folder: str) -> None:
    torch.save(layout(index), f"{folder}/{index}.pt")


def adopted(folder: str) -> None:
    """A world that the library's own call makes."""
    import torch_xla

    torch_xla.launch(launched, (folder,), start_method="fork")


# -- the tests --------------------------------------------------------------------------------------------------------
def program(name: str, folder: Path, count: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``name`` in a world of ``count`` replicas, or in a single process with 0."""
    command = [sys.executable, __file__, name, str(folder), str(count), json.dumps(options)]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": paths, "CPU_NUM_DEVICES": "2" if name == "adopted" else "1"}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], list[Any]]:
    """What every replica of a world wrote; each world runs once."""

    @functools.cache
    def run(name: str, count: int) -> list[Any]:
        folder = tmp_path_factory.mktemp(name)
        done = program(name, folder, count)
        assert done.returncode == 0, done.stderr
        return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]

    return run


def chosen(rows: list[Tensor], members: list[int] | None) -> list[Tensor]:
    return rows if members is None else [rows[rank] for rank in members]


@needs_xla
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("count", WORLDS)
class TestPrimitives:
    def test_layout(self, replicas: Any, count: int) -> None:
        for rank, got in enumerate(replicas("primitives", count)):
            assert got["layout"] == {
                "local_rank": (rank, rank),
                "rank": rank,
                "world": (count, count, 1, 0),
                "names": ("xla-tpu", "xla-dist", "xla"),
            }

    @pytest.mark.parametrize("dtype", REDUCED)
    @pytest.mark.parametrize("op", FOLD)
    def test_all_reduce(self, replicas: Any, count: int, op: str, dtype: torch.dtype) -> None:
        rows = [values(rank, dtype) for rank in range(count)]
        for name, members in groups(count).items():
            expected = functools.reduce(FOLD[op], chosen(rows, members))
            for rank, got in enumerate(replicas("primitives", count)):
                assert torch.equal(got["input", name, dtype, op], rows[rank])
                if members is None or rank in members:
                    result = got["reduce", name, dtype, op]
                    assert result.dtype is dtype
                    torch.testing.assert_close(
                        result, expected, rtol=0 if dtype is not torch.float32 else 1e-6, atol=1e-6
                    )

    @pytest.mark.parametrize("dtype", CARRIED)
    def test_all_gather_and_broadcast_are_exact(self, replicas: Any, count: int, dtype: torch.dtype) -> None:
        rows = torch.stack([values(rank, dtype) for rank in range(count)])
        for got in replicas("primitives", count):
            assert torch.equal(got["gather", dtype], rows)
            assert torch.equal(got["scalar", dtype], rows[:, 0, 0])
            for src in range(count):
                assert torch.equal(got["broadcast", dtype, src], rows[src])

    def test_ranks_may_compute_different_things_around_a_collective(self, replicas: Any, count: int) -> None:
        total = sum(2.0 ** (rank + 1) - 1 for rank in range(count))
        for rank, got in enumerate(replicas("primitives", count)):
            assert got["unequal work"].tolist() == [total * (rank + 1)] * 2


@functools.cache
def oracle() -> dict[str, Any]:
    """The same training in this process, on the global batches."""
    model = net(0)
    start = state(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    loader = idist.auto_dataloader(samples(), batch_size=4, shuffle=True, seed=7)
    losses = [float(loss) for loss in train(model, optimizer, loader, 5, closure=False)]
    return {
        "start": start,
        "losses": losses,
        "end": state(model),
        "lr": optimizer.param_groups[0]["lr"],
        "momentum": optimizer.state_dict()["state"][0]["momentum_buffer"],
        "batches": [y for _, y in loader],
    }


@needs_xla
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("count", WORLDS)
class TestTraining:
    def test_replicas_start_as_rank_0(self, replicas: Any, count: int) -> None:
        expected = oracle()["start"]
        for got in replicas("training", count):
            assert got["start"].keys() == expected.keys()
            for name, value in expected.items():
                assert torch.equal(got["start"][name], value), name

    def test_five_steps_are_those_of_one_process_on_the_global_batch(self, replicas: Any, count: int) -> None:
        expected = oracle()
        for got in replicas("training", count):
            assert got["losses"] == pytest.approx(expected["losses"], rel=1e-10)
            for name, value in expected["end"].items():
                torch.testing.assert_close(got["end"][name], value, rtol=1e-10, atol=1e-12)
            assert got["optimizer"] == (True, pytest.approx(expected["lr"]))
            torch.testing.assert_close(got["momentum"], expected["momentum"], rtol=1e-10, atol=1e-12)

    def test_loader(self, replicas: Any, count: int) -> None:
        batches = oracle()["batches"]
        got = replicas("training", count)
        for rank in range(count):
            assert got[rank]["loader"] == (6, 4 // count, 7, 6)
            assert got[rank]["devices"] == {"xla"}
        for step in range(5):  # the last one may hold repeated samples
            parts = [replica["order"].split(replica["sizes"])[step] for replica in got]
            assert torch.equal(torch.stack(parts, 1).reshape(-1), batches[step])


@needs_xla
@pytest.mark.timeout(SECONDS)
def test_closure_with_different_batch_sizes(replicas: Any) -> None:
    got = replicas("closures", 2)
    # The gradient of sum(x @ w.T + b) is the column sums of x for each row of w, and the batch size for b.
    weight, bias = (2 * 1.0 + 3 * 2.0) / 2, (2 + 3) / 2
    for rank, replica in enumerate(got):
        before, after = replica["before"], replica["after"]
        torch.testing.assert_close(after["weight"], before["weight"] - 0.5 * weight)
        torch.testing.assert_close(after["bias"], before["bias"] - 0.5 * bias)
        x = torch.full((2 + rank, 4), 1.0 + rank)
        assert replica["loss"] == pytest.approx(
            float((x @ before["weight"].T + before["bias"]).sum()), abs=1e-5
        )
        assert replica["lr"] == [0.25]
    assert torch.equal(got[0]["after"]["weight"], got[1]["after"]["weight"])


@needs_xla
@pytest.mark.timeout(SECONDS)
def test_replicas_have_random_numbers_of_their_own(replicas: Any) -> None:
    for rank, drawn in enumerate(replicas("random_numbers", 2)):
        torch.manual_seed(rank)
        for i in range(0, len(drawn), 4):
            assert torch.equal(drawn[i], torch.rand(2))
            assert torch.equal(drawn[i + 1], torch.empty(3).normal_())
            assert torch.equal(drawn[i + 2], nn.Linear(2, 2).weight)
            assert torch.equal(drawn[i + 3], torch.randperm(5))


@needs_xla
@pytest.mark.timeout(SECONDS)
class TestWorlds:
    def test_rank_0s_value_comes_back(self, tmp_path: Path) -> None:
        done = program("value_of_rank", tmp_path, 2, start_method="spawn")
        assert done.stdout == "returned {'rank': 0, 'text': 'ü'}\n"
        assert done.stderr.count("a simulation, 2 replicas as threads of one process on the CPU") == 1

    def test_a_value_that_cannot_be_sent_is_dropped_with_a_warning(self, tmp_path: Path) -> None:
        done = program("unpicklable", tmp_path, 2)
        assert done.stdout == "returned None\n"
        assert "the returned value is dropped" in done.stderr

    def test_a_failing_replica_ends_the_world(self, tmp_path: Path) -> None:
        done = program("raise_on_one", tmp_path, 2)
        assert done.stdout == "local rank 1: KeyError: 'replica one has had enough'\n"
        assert done.stderr.rstrip().endswith("KeyError: 'replica one has had enough'")
        assert "in raise_on_one" in done.stderr

    def test_a_killed_world_says_so(self, tmp_path: Path) -> None:
        assert program("killed", tmp_path, 2).stdout == "local rank 0: killed by SIGKILL\n"

    def test_a_missing_replica_is_named_at_the_deadline(self, tmp_path: Path) -> None:
        done = program("stay_away", tmp_path, 2, timeout=3)
        assert (
            "CollectiveError: xla-tpu: all_gather on rank 0: ranks [1] did not come within 3 s" in done.stdout
        )

    def test_an_unreadable_sample_is_an_error_and_not_the_end_of_the_data(self, tmp_path: Path) -> None:
        assert "OSError: sample 9 is unreadable" in program("read_broken", tmp_path, 2).stdout

    def test_world_of_one(self, tmp_path: Path) -> None:
        done = program("one", tmp_path)
        assert done.returncode == 0, done.stderr
        assert torch.load(tmp_path / "one.pt") == {
            "before": (None, False),
            "inside": (
                {
                    "local_rank": (0, 0),
                    "rank": 0,
                    "world": (1, 1, 1, 0),
                    "names": ("xla-tpu", "xla-dist", "xla"),
                },
                2**70,
                "xla",
            ),
            "after": None,
        }
        assert done.stderr.count("no TPU here: one replica on the CPU") == 1

    def test_the_librarys_own_launch_is_adopted(self, tmp_path: Path) -> None:
        done = program("adopted", tmp_path)
        assert done.returncode == 0, done.stderr
        for rank in range(2):
            assert torch.load(tmp_path / f"{rank}.pt") == {
                "local_rank": (rank, rank),
                "rank": rank,
                "world": (2, 2, 1, 0),
                "names": ("xla-tpu", "xla-dist", "xla"),
            }


class TestRefusals:
    """Before anything starts, and without the library."""

    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(xla.XlaBackend, "missing", lambda name: None)
        monkeypatch.setenv("PJRT_DEVICE", "CPU")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"device": "cpu"}, "device='cpu'.*set PJRT_DEVICE to TPU or CPU instead"),
            (
                {"nnodes": 2, "node_rank": 1, "master_addr": "a", "master_port": 1},
                "XLA finds its hosts: remove them",
            ),
            ({"master_port": 2222}, "XLA finds its hosts: remove them"),
            ({"port": 1}, "port=1 is not an argument"),
        ],
    )
    def test_spawn_arguments(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            idist.spawn("xla-tpu", value_of_rank, ("",), nproc_per_node=2, **options)

    def test_processes_of_a_launcher(self, monkeypatch: pytest.MonkeyPatch) -> None:
        two = SimpleNamespace(world_size=2, source="torchrun")
        monkeypatch.setattr(environment, "detect", lambda environ: two)
        with pytest.raises(ValueError, match=r"torchrun started 2 processes.*nproc_per_node"):
            idist.initialize("xla-tpu")

    def test_the_count_that_a_tpu_host_can_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        host = SimpleNamespace(num_local_processes=lambda: 4, num_logical_cores_per_chip=lambda: 2)
        monkeypatch.setattr(xla, "_xla", lambda module: host)
        monkeypatch.setenv("PJRT_DEVICE", "TPU")
        assert (xla._tpu_processes(1), xla._tpu_processes(8)) == (1, 4)
        with pytest.raises(ValueError, match="nproc_per_node=3: this TPU host runs 1 or 8 replicas"):
            idist.spawn("xla-tpu", value_of_rank, ("",), nproc_per_node=3)


def test_a_missing_library_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError) as caught:
        idist.spawn("xla-tpu", value_of_rank, ("",), nproc_per_node=2)
    expected = "backend='xla-tpu' can't be used here: torch_xla is not installed: make env BACKEND=xla-tpu"
    assert str(caught.value) == expected


def test_a_torch_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(xla, "version", {"torch": "2.14.1", "torch_xla": "2.9.0"}.get)
    expected = "torch_xla 2.9.0 does not load beside torch 2.14.1: make env BACKEND=xla-tpu"
    assert xla.XlaBackend.missing("xla-tpu") == expected


def test_a_call_that_never_comes_back_ends_the_process() -> None:
    code = "import time\nfrom reference.idist.backends.xla import _deadline\n"
    code += "with _deadline(0.1, 'barrier on rank 0 of 2'): time.sleep(600)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    expected = "xla-tpu: barrier on rank 0 of 2 did not end within 0.1 s: a rank is missing\n"
    assert (done.returncode, done.stderr) == (1, expected)


def main(name: str, folder: str, count: int, options: dict[str, Any]) -> None:
    if count == 0:
        globals()[name](folder)
        return
    try:
        options = {"start_method": "fork", **options}
        value = idist.spawn("xla-tpu", globals()[name], (folder,), nproc_per_node=count, **options)
    except idist.ProcessFailed as error:
        print(f"local rank {error.local_rank}: {error.cause}", flush=True)
        raise
    print("returned", value)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))

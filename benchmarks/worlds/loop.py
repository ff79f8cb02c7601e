"""What the engine's loop costs: microseconds an iteration, in blocks that take turns within one process.

    launchers/plain.sh -m benchmarks.worlds.loop --output=DIR

Writes `DIR/loop.json`: for each side the microseconds of an iteration (its block's mean), one number a block.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import reference.engine as engine
from benchmarks.turns import alternating
from benchmarks.worlds import training_handlers
from reference.files import write_json

BATCH, FEATURES, HIDDEN, CLASSES = 64, 64, 256, 10
Batch = tuple[Tensor, Tensor]
Side = Callable[[int], None]  # runs so many iterations


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worlds.loop", allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument("--blocks", type=int, default=20, help="of each side (%(default)s)")
    parser.add_argument(
        "--empty", type=int, default=20_000, help="iterations of a block with an empty step (%(default)s)"
    )
    parser.add_argument(
        "--handled", type=int, default=1_000, help="the same with the trainer's handlers (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=200, help="training steps of a block (%(default)s)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = measure_in_turns(empty_sides(), given.blocks, given.empty)
    with training_handlers.handled(given.output / "run", given.handled) as handled:
        found |= measure_in_turns(
            {"bare_of_handled": bare_loop, "handled": handled}, given.blocks, given.handled
        )
    found |= measure_in_turns(training_sides(), given.blocks, given.steps)
    write_json(given.output / "loop.json", found)


def measure_in_turns(sides: dict[str, Side], blocks: int, iterations: int) -> dict[str, list[float]]:
    """Microseconds an iteration of each side's blocks; one block of each before them does not count."""
    for side in sides.values():
        side(iterations)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for name in alternating(blocks, list(sides)):
        begin = time.perf_counter()
        sides[name](iterations)
        found[name].append((time.perf_counter() - begin) / iterations * 1e6)
    return found


# ---- empty steps


def empty_sides() -> dict[str, Side]:
    """A bare loop, this engine, and pytorch-ignite's where it is installed; the step does nothing."""
    ours = engine.Engine(_empty_step)
    sides: dict[str, Side] = {"bare": bare_loop, "engine": lambda n: _finish(ours.run(range(n)), n)}
    if importlib.util.find_spec("ignite") is not None:
        import ignite.engine

        theirs = ignite.engine.Engine(_empty_step)
        sides["ignite"] = lambda n: _finish(theirs.run(range(n)), n)
    return sides


def bare_loop(iterations: int) -> None:
    """What an engine replaces."""
    for batch in range(iterations):
        _empty_step(None, batch)


def _empty_step(engine: Any, batch: Any) -> Any:
    return None


def _finish(state: Any, iterations: int) -> None:
    if state.iteration != iterations:
        raise RuntimeError(f"the engine did {state.iteration} iterations of {iterations}")


# ---- training steps


def training_sides() -> dict[str, Side]:
    """The same training written by hand, with this project's trainer, and with pytorch-ignite's."""
    data = batches(8)
    sides: dict[str, Side] = {}
    for name, make in trainings().items():
        train = make()
        sides[name] = lambda n, train=train: _train(train, data, n)  # type: ignore[misc]
    return sides


def trainings() -> dict[str, Callable[[], Callable[[Iterable[Batch]], list[Tensor]]]]:
    """For each side what makes a training: a function that trains on batches and returns the losses of its steps."""
    made: dict[str, Callable[[], Callable[[Iterable[Batch]], list[Tensor]]]] = {
        "by_hand": _by_hand,
        "supervised": _supervised,
    }
    if importlib.util.find_spec("ignite") is not None:
        made["ignite_supervised"] = _ignite_supervised
    return made


def batches(count: int) -> list[Batch]:
    """Inputs [64, 64] and labels [64], the same every time."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(BATCH, FEATURES, generator=generator),
            torch.randint(CLASSES, (BATCH,), generator=generator),
        )
        for _ in range(count)
    ]


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A perceptron with one hidden layer, the same weights every time, and SGD."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _train(train: Callable[[Iterable[Batch]], list[Tensor]], data: list[Batch], steps: int) -> None:
    losses = train([data[step % len(data)] for step in range(steps)])
    if len(losses) != steps:
        raise RuntimeError(f"{len(losses)} steps were taken instead of {steps}")


def _by_hand() -> Callable[[Iterable[Batch]], list[Tensor]]:
    model, optimizer = model_and_optimizer()
    criterion = nn.CrossEntropyLoss()

    def train(data: Iterable[Batch]) -> list[Tensor]:
        losses = []
        model.train()
        for x, y in data:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    return train


def _supervised() -> Callable[[Iterable[Batch]], list[Tensor]]:
    model, optimizer = model_and_optimizer()
    trainer = engine.create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
    losses: list[Tensor] = []
    trainer.add_event_handler(engine.Events.ITERATION_COMPLETED, lambda e: losses.append(e.state.output))

    def train(data: Iterable[Batch]) -> list[Tensor]:
        losses.clear()
        trainer.run(data)
        return list(losses)

    return train


def _ignite_supervised() -> Callable[[Iterable[Batch]], list[Tensor]]:
    import ignite.engine

    model, optimizer = model_and_optimizer()
    trainer = ignite.engine.create_supervised_trainer(
        model, optimizer, nn.CrossEntropyLoss(), output_transform=lambda x, y, y_pred, loss: loss.detach()
    )
    losses: list[Tensor] = []
    trainer.add_event_handler(
        ignite.engine.Events.ITERATION_COMPLETED, lambda e: losses.append(e.state.output)
    )

    def train(data: Iterable[Batch]) -> list[Tensor]:
        losses.clear()
        trainer.run(data)
        return list(losses)

    return train


if __name__ == "__main__":
    main()

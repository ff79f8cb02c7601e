"""The CIFAR-10 trainer's engine with every handler that `reference.cifar10.trainer.train` gives it, without a data set.

No checkpoint falls due and nothing is evaluated: those cost what they cost once in many iterations, and no loop can help it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reference.cifar10.config import Config
from reference.cifar10.outcome import Outcome
from reference.cifar10.parts import create_trainer, get_criterion, get_lr_scheduler, get_optimizer
from reference.cifar10.reporting import make_logger, report
from reference.cifar10.resuming import RandomState, RunIdentity
from reference.cifar10.rundir import RunDirectory
from reference.cifar10.stopping import StopRequest
from reference.cifar10.trainer import save_checkpoints
from reference.engine import Engine, Events
from reference.metrics import Throughput

BATCH, CLASSES = 16, 10
_NEVER = 10**9  # iterations


def small_model() -> nn.Module:
    """Images [B, 3, 32, 32] to logits [B, 10], with fresh weights."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, CLASSES))


def images() -> tuple[Tensor, Tensor, Tensor]:
    """A batch as the trainer's loader gives it: images [16, 32, 32, 3] uint8, labels and indices [16]."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (BATCH, 32, 32, 3), dtype=torch.uint8, generator=generator)
    return pixels, torch.randint(CLASSES, (BATCH,), generator=generator), torch.arange(BATCH)


@contextmanager
def trainer(folder: Path, iterations: int) -> Iterator[Engine]:
    """The engine, with a small model; it is set up for a run of so many iterations, in one process.

    Args:
        folder: gets the run directory.
        iterations: of an epoch, or of the run.
    """
    config = Config(
        batch_size=BATCH,
        learning_rate=0.001,
        output_path=str(folder),
        checkpoint_every=_NEVER,
        num_epochs=1,
    )
    run = RunDirectory.create(folder, "loop")
    logger = make_logger(run)
    model = small_model()
    optimizer = get_optimizer(config, model)
    schedule = get_lr_scheduler(config, optimizer, iterations)
    throughput = Throughput(BATCH)
    engine, running = create_trainer(
        config, model, optimizer, get_criterion(config), flip=True, clock=throughput
    )
    engine.logger = logger
    outcome = Outcome(config, run, time.time())
    throughput.attach(engine, "throughput")
    engine.add_event_handler(Events.ITERATION_COMPLETED, outcome.iteration_completed)
    loggers = report(engine, config, run, logger, optimizer, {}, iterations)
    to_save: dict[str, Any] = {
        "run": RunIdentity(config, "none", logger),
        "trainer": engine,
        "model": model,
        "optimizer": optimizer,
        "lr_scheduler": schedule,
        "random": RandomState(),
        **running,
    }
    save_checkpoints(config, run, to_save, None, Engine(lambda engine, batch: None, evaluation=True))
    try:
        with StopRequest() as stop:

            def stop_if_asked() -> None:
                if stop.agreed(engine.state.iteration) is not None:
                    engine.terminate()

            engine.add_event_handler(Events.ITERATION_COMPLETED, stop_if_asked)
            yield engine
    finally:
        loggers.close()


@contextmanager
def handled(folder: Path, iterations: int) -> Iterator[Callable[[int], None]]:
    """What runs the engine for a number of iterations with all of its handlers, and a step that does nothing."""
    with trainer(folder, iterations) as engine:
        output = {
            "loss": torch.tensor(1.0),
            "y_pred": torch.randn(BATCH, CLASSES),
            "y": torch.arange(BATCH) % CLASSES,
        }
        engine.process_function = lambda engine, batch: output

        def run(count: int) -> None:
            done = engine.run(range(count)).iteration
            if done != count:
                raise RuntimeError(f"the engine did {done} iterations of {count}")

        yield run

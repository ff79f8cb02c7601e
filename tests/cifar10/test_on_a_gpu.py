"""What of a training on a GPU can be checked without one: where its tensors lie.

torch's fake tensors have shapes, types and devices, but no values. Operations refuse operands of different devices, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from reference.cifar10 import augment, data, model, parts
from reference.cifar10.config import make_config
from reference.cifar10.datasets.base import Split
from reference.idist.backends.serial import SerialBackend
from reference.metrics import Accuracy, Loss

GPU = torch.device("cuda", 0)
SIZE = 64


@pytest.fixture(autouse=True)
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: the trainer's own tests use it")
    monkeypatch.setattr(SerialBackend, "device", property(lambda self: GPU))
    augment._centre_and_scale.cache_clear()
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield
    augment._centre_and_scale.cache_clear()  # of fake tensors


def split() -> Split:
    random = np.random.Generator(np.random.PCG64(0))
    return Split(
        images=random.integers(0, 256, (SIZE, 32, 32, 3), dtype=np.uint8), labels=random.integers(0, 10, SIZE)
    )


def test_devices_are_told_apart() -> None:
    with pytest.raises(RuntimeError, match="device"):
        augment.crop_and_flip(
            torch.zeros(4, 32, 32, 3, dtype=torch.uint8, device=GPU),
            augment.draws(torch.arange(4), seed=1, epoch=1),
            flip=True,
        )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_data_set_lies_on_the_gpu_unless_loader_processes_need_it(num_workers: int) -> None:
    config = make_config({"dataset": "fake", "num_workers": num_workers})
    array = data.ImageArray(split(), np.arange(0, SIZE, 2), data._residence(config))
    assert len(array) == SIZE // 2
    batch = array.__getitems__([3, 1, 30])
    assert [part.device.type for part in batch] == 3 * ["cpu" if num_workers else "cuda"]
    assert [tuple(part.shape) for part in batch] == [(3, 32, 32, 3), (3,), (3,)]


@pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning")
@pytest.mark.parametrize("resident", [True, False], ids=["from the GPU", "from memory"])
def test_batches_losses_and_metrics_are_on_the_gpu(resident: bool) -> None:
    # a backward pass needs a real one
    config = make_config({"dataset": "fake", "preset": "fast94", "batch_size": 16})
    with GPU:  # a module of fake tensors cannot be moved there
        net = model.build(config.model)
    criterion = parts.get_criterion(config)
    array = data.ImageArray(split(), None, GPU if resident else None)
    batch = array.__getitems__(range(16))
    x, y = data.training_batch(config.seed, True, epoch=lambda: 1)(batch, GPU, True)
    loss = criterion(net(x), y)
    assert x.device == y.device == loss.device == GPU
    assert x.shape == (16, 3, 32, 32) and x.is_contiguous(memory_format=torch.channels_last)

    evaluator = parts.Evaluator(config, net, criterion, loader=None).engine
    y_pred, y = evaluator.process_function(evaluator, batch)
    assert y_pred.device == y.device == GPU and y_pred.shape == (16, 10)
    for metric in (Accuracy(), Loss(criterion)):
        metric.update((y_pred, y))

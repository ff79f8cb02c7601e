"""The peers are the same training as the trainer's: augmentation, schedule, meter. And they end with a complete result."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.peers import plain_torch, shared
from reference.cifar10 import augment, datasets, per_sample
from reference.cifar10.config import Config
from reference.cifar10.parts import get_lr_scheduler
from reference.metrics import throughput

ignite_cifar10 = pytest.importorskip(
    "benchmarks.peers.ignite_cifar10", reason="pytorch-ignite is not installed: docker/locks/peer.txt"
)

DRAWN = 9_720  # 60 for each of the 162 results


@pytest.fixture(scope="module")
def picture():
    return np.random.Generator(np.random.PCG64(1)).integers(0, 256, (32, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def possible(picture):
    """Every result of our augmentation for the picture, as bytes of uint8 pixels, with its number."""
    places = torch.arange(162)
    drawn = augment.Draws(places // 18, places // 2 % 9, places % 2 == 1)
    cut = augment.crop_and_flip(torch.from_numpy(picture).expand(162, -1, -1, -1), drawn, flip=True)
    found = {pixels.numpy().tobytes(): number for number, pixels in enumerate(cut)}
    assert len(found) == 162
    return found


def pixels_of(tensor):
    """[3, H, W] normalised to [H, W, 3] uint8."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (augment.MEAN, augment.STD))
    return ((tensor * std + mean) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()


def chi_square(counts):
    """Of counts that should be even. Over 162 results its mean is 161 and its standard deviation 18."""
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_peers_draw_what_the_trainer_draws(picture, possible):
    torch.manual_seed(3)
    transform = per_sample.training_transform(flip=True)
    image = Image.fromarray(picture)
    theirs = [possible[pixels_of(transform(image)).numpy().tobytes()] for _ in range(DRAWN)]
    drawn = augment.draws(torch.arange(DRAWN), seed=3, epoch=1)
    ours = (drawn.top * 18 + drawn.left * 2 + drawn.flip).numpy()
    for numbers in (np.array(theirs), ours):
        assert chi_square(np.bincount(numbers, minlength=162)) < 161 + 5 * 18


def test_digits_are_not_mirrored(picture, possible):
    torch.manual_seed(3)
    transform = per_sample.training_transform(flip=False)
    found = {possible[pixels_of(transform(Image.fromarray(picture))).numpy().tobytes()] for _ in range(300)}
    assert not [number for number in found if number % 2]
    assert len(found) > 50


def test_test_images_are_the_same_numbers(picture):
    theirs = per_sample.evaluation_transform()(Image.fromarray(picture))
    ours = augment.normalise(torch.from_numpy(picture)[None])[0]
    assert torch.allclose(theirs, ours, atol=1e-6)


def test_pictures_are_the_trainers_samples():
    given = shared.settings(["--dataset=digits", "--max_train_samples=10", "--max_eval_samples=7"])
    train, test = shared.pictures(given)
    images = datasets.load("digits", None)
    assert (len(train), len(test)) == (10, 7)
    chosen = np.arange(7) * len(images.test.labels) // 7
    for position, index in enumerate(chosen):
        tensor, label = test[position]
        assert label == images.test.labels[index]
        assert np.array_equal(pixels_of(tensor).numpy(), images.test.images[index])


@pytest.mark.parametrize("epochs", [2, 5])
def test_all_sides_have_the_same_learning_rates(epochs):
    steps = 7
    given = shared.settings([f"--num_epochs={epochs}", "--learning_rate=0.3"])
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    optimizers = [torch.optim.SGD(parameters, lr=0.3) for _ in range(2)]
    ours = get_lr_scheduler(Config(num_epochs=epochs, learning_rate=0.3), optimizers[0], steps)
    ignite = ignite_cifar10.schedule_of(given, optimizers[1], steps)
    for step in range(steps * epochs):
        ours()
        ignite(None)
        rate = optimizers[0].param_groups[0]["lr"]
        assert optimizers[1].param_groups[0]["lr"] == pytest.approx(rate)
        assert 0.3 * plain_torch.factor(step, steps, steps * epochs) == pytest.approx(rate)


def test_the_meter_leaves_out_the_first_steps_and_what_is_between_epochs(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now[0])
    given = shared.settings(["--batch_size=64"])
    clock = shared.meter(given, world_size=2, steps_per_epoch=3)
    for _ in range(3):
        now[0] += 100  # evaluation
        clock.start()
        for step in range(3):
            now[0] += 2 if step else 4
            clock.update(32)
        clock.stop()
    found = clock.summary()
    assert found["samples"] == 6 * 32
    assert found["seconds"] == 16
    assert found["samples_per_second"] == 12
    assert shared.meter(given, world_size=2, steps_per_epoch=50)._warmup == 10


@pytest.mark.parametrize("peer", [ignite_cifar10, plain_torch])
def test_a_peer_trains_alone(peer, tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "_SETTLE", 0.0)
    arguments = [
        "program", "--model=shufflenet_v2_x0_5", "--batch_size=8", "--max_train_samples=32", "--max_eval_samples=9",
        "--num_epochs=2", "--evaluate_train", f"--output_path={tmp_path}",
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", arguments)
    peer.main()
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["n_evaluated"] == 9
    assert found["measured_images"] == 32
    assert round(9 * found["accuracy"], 6).is_integer()
    assert found["throughput_images_per_s"] > 0 and found["evaluation_s"] > 0
    assert (found["evaluation_train_s"] is not None) == (peer is ignite_cifar10)
    assert [*tmp_path.glob("*.pt")]

"""Models: shapes, sizes, names."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from reference.cifar10 import model
from reference.cifar10.options import OptionError


def test_resnet18_cifar_is_the_published_network() -> None:
    net = model.build("resnet18_cifar")
    # 3x3 stem, stages of 64, 128, 256, 512 channels with two blocks each, a linear head: 11,173,962 parameters for 10 classes.
    assert sum(p.numel() for p in net.parameters()) == 11_173_962
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert len([c for c in convolutions if c.kernel_size == (3, 3)]) == 17
    assert [c.stride for c in convolutions if c.kernel_size == (1, 1)] == [(2, 2)] * 3
    assert not any(isinstance(m, nn.MaxPool2d) for m in net.modules())


def test_resnet18_cifar_keeps_the_resolution_as_it_should() -> None:
    net = model.build("resnet18_cifar").eval()
    sizes: list[tuple[int, ...]] = []
    for block in net.blocks:  # type: ignore[union-attr]
        block.register_forward_hook(lambda module, args, output: sizes.append(tuple(output.shape[1:])))
    with torch.inference_mode():
        assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert sizes[1::2] == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def test_gradients_reach_every_parameter() -> None:
    net = model.build("resnet18_cifar")
    nn.functional.cross_entropy(net(torch.randn(4, 3, 32, 32)), torch.arange(4)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


def test_same_seed_same_weights() -> None:
    nets = []
    for _ in range(2):
        torch.manual_seed(1)
        nets.append(model.build("resnet18_cifar").state_dict())
    assert all(torch.equal(nets[0][name], nets[1][name]) for name in nets[0])


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "vgg11_bn"])
def test_torchvision_models_get_ten_classes(name: str) -> None:
    net = model.build(name).eval()
    with torch.inference_mode():
        assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    "name", ["resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121", model.OWN]
)
def test_check_accepts(name: str) -> None:
    model.check(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet19", "unknown model 'resnet19'; did you mean resnet1"),
        ("resnet18_cifr", "did you mean resnet18_cifar?"),
        ("qqqq", "unknown model 'qqqq'"),
        ("raft_large", "unknown model 'raft_large'"),
        ("alexnet", "alexnet does not take images of 32x32 pixels: "),
        ("vit_b_16", "vit_b_16 does not take images of 32x32 pixels: "),
    ],
)
def test_check_refuses_in_one_line(name: str, says: str) -> None:
    with pytest.raises(OptionError) as error:
        model.check(name)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_known_good_models_pass_the_check() -> None:
    for name in model.KNOWN_GOOD:
        model.check(name)


def test_without_torchvision() -> None:
    code = (
        "import sys; sys.modules['torchvision'] = None\n"
        "from reference.cifar10 import model\n"
        "from reference.cifar10.options import OptionError\n"
        "import reference.cifar10.trainer\n"
        "model.build('resnet18_cifar')\n"
        "try: model.build('resnet18')\n"
        "except OptionError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "resnet18 needs torchvision" in done.stdout and "--model=resnet18_cifar does not" in done.stdout, (
        done.stderr
    )

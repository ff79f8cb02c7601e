"""Models by name: `resnet18_cifar`, written here, and every classification model of torchvision.

torchvision is imported only for its own models.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from reference.cifar10.config import NUM_CLASSES
from reference.cifar10.options import OptionError, hint

OWN = "resnet18_cifar"
KNOWN_GOOD = (OWN, "resnet18")  # `check` would only import torchvision to say so


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut (K. He et al., Deep Residual Learning for Image Recognition, 2015)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels_in, H, W] to [B, channels_out, H / stride, W / stride]."""
        inside = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(inside + self.shortcut(x))


class ResNet18Cifar(nn.Module):
    """ResNet-18 for 32x32 images: a 3x3 stem of stride 1 without max-pooling, then the usual eight blocks."""

    def __init__(self, num_classes: int = NUM_CLASSES) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        )
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        self.blocks = nn.Sequential(
            *(BasicBlock(a, b, stride=1 if a == b else 2) for a, b in itertools.pairwise(widths))
        )
        self.head = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """[B, 3, H, W] to logits [B, num_classes]."""
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def build(name: str, num_classes: int = NUM_CLASSES) -> nn.Module:
    """The model `name`, with fresh weights from torch's global generator.

    Raises:
        OptionError: torchvision is needed and missing, or has no classification model of that name.
    """
    if name == OWN:
        return ResNet18Cifar(num_classes)
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:
        raise OptionError(f"model {name} needs torchvision ({error}); --model={OWN} does not") from None
    known = models.list_models(module=models)
    if name not in known:
        raise OptionError(f"unknown model {name!r}{hint(name, [*known, OWN])}")
    return models.get_model(name, weights=None, num_classes=num_classes)


def check(name: str) -> None:
    """Refuse a model that cannot be trained on 32x32 images, before any process starts. Costs no memory and no training.

    Raises:
        OptionError: as `build`, and for a model that needs larger images or gives something else than logits.
    """
    with torch.device("meta"):
        model = build(name)
        try:
            output = model(torch.empty(2, 3, 32, 32))
        except (RuntimeError, AssertionError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise OptionError(f"model {name} does not take images of 32x32 pixels: {reason}") from None
    if not isinstance(output, Tensor) or output.shape != (2, NUM_CLASSES):
        raise OptionError(
            f"model {name} does not give one row of {NUM_CLASSES} logits for each image; take another one"
        )

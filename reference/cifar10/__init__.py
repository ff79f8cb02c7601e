"""The CIFAR-10 trainer: `python -m reference.cifar10 run`."""

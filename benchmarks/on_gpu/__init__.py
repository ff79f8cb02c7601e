"""The parts of `benchmarks/gpu.sh`: a program each, so that one that fails or hangs does not take the others with it.

They use what a machine for GPU work has anyway: torch, numpy, psutil, rich; Pillow for a folder of images.
"""

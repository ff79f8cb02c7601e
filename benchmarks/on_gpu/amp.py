"""Mixed precision and the compiler: images a second of a plain loop in every combination."""

from __future__ import annotations

import torch

from benchmarks.on_gpu.loop import images_per_second
from benchmarks.on_gpu.rows import Rows, arguments

FORMATS = {"fp32 (TF32 in convolutions)": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def main() -> None:
    """Measure all six; the compiled ones last, as each takes the compiler's time."""
    given = arguments()
    rows = Rows("mixed precision", given)
    batch_size, seconds = (8, 0.2) if given.quick else (512, 2.0)
    first = None
    for compiled in (False, True):
        for name, amp in FORMATS.items():
            if given.device == "cpu" and (amp == torch.float16 or compiled and amp is not None):
                continue
            speed = images_per_second(
                given.device,
                quick=given.quick,
                batch_size=batch_size,
                seconds=seconds,
                amp=amp,
                compiled=compiled,
            )
            first = first or speed
            title = f"{name}{', torch.compile' if compiled else ''}"
            rows.add(title, f"{speed:,.0f} images/s", f"{speed / first:.2f} of the first")


if __name__ == "__main__":
    main()

"""`make doctor`: what this machine, or the ranks of a launcher, can run, and what will bite.

    python -m reference.doctor                                    # this machine, and two processes on every backend
    torchrun --nproc_per_node=2 -m reference.doctor               # all ranks of a world: the odd one out is named
    srun --nodes=2 --ntasks-per-node=2 python -m reference.doctor

A module for each section (`machine`, `network`, ...) has a function `look`, which finds facts, and a pure one, `judge`, which
turns them into findings of one line each. `allreduce` measures, `world` gathers what the ranks found, `text` prints.
"""

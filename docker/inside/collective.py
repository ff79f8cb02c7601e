"""Each process gives its rank + 1, and rank 0 prints the sum; the self-test starts this with every launcher."""

from __future__ import annotations

import fire

import reference.idist as idist


def add(local_rank: int) -> None:
    """Add up over all processes."""
    total = idist.all_reduce(float(idist.get_rank() + 1))
    if idist.get_rank() == 0:
        print(f"sum {total} of {idist.get_world_size()} processes", flush=True)


def main(backend: str, **layout: int) -> None:
    """Run on this backend; `layout` is what the launcher spawn.sh adds."""
    with idist.Parallel(backend=backend, **layout) as parallel:
        parallel.run(add)


if __name__ == "__main__":
    fire.Fire(main)

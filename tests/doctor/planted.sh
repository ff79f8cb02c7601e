#!/usr/bin/env bash
# The doctor as a rank of torchrun; rank 1 has other limits and settings than the others.
set -euo pipefail
if [ "$RANK" = 1 ]; then
  export OMP_NUM_THREADS=3 NCCL_ALGO=Ring
  ulimit -Sn 555
fi
exec python -m reference.doctor "$@"

#!/usr/bin/env bash
# What only a GPU can tell, on one page and in under six minutes. Installs and builds nothing.
#
#   benchmarks/gpu.sh                              plain python3 with a CUDA build of torch
#   DATA=<folder or archive> benchmarks/gpu.sh     real images; PYTHON=<interpreter> another Python
#   benchmarks/gpu.sh --device=cpu --quick         everything around the GPU, for trying this script
set -euo pipefail
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python3}"
if ! command -v "$python" >/dev/null; then
  echo "error: there is no $python here: PYTHON=<interpreter> benchmarks/gpu.sh" >&2
  exit 2
fi
exec "$python" -m benchmarks.gpu --relative_to="$here" "$@"

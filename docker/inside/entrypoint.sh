#!/bin/bash
# What a container starts; `docker run --rm IMAGE` shows the choices.
set -euo pipefail

help() {
  cat <<'TEXT'
The idist workbench: one training program on every PyTorch backend and launcher.

  docker run --rm IMAGE COMMAND [ARGUMENT...]

  run [OPTION...]        train CIFAR-10: run --help; processes with --backend=gloo --nproc_per_node=2
  torchrun, horovodrun   the launchers: torchrun --nproc-per-node=2 -m reference.cifar10 run --backend=gloo
  launchers/NAME.sh      the launchers as make uses them: NP=2 launchers/torchrun.sh -m reference.cifar10 run
  doctor                 what this container finds: devices, versions, network
  pytest [ARGUMENT...]   the tests that came with the code
  selftest               versions against the locks, a collective on each backend, ten training steps
  sbom                   what is in this image, as CycloneDX
  help                   this text
  anything else          is run as it is: python, bash, ...

Runs go to /workspace/runs and data comes from /workspace/data: mount both.
  docker run --rm --shm-size=1g --user "$(id -u):$(id -g)" -v "$PWD/runs:/workspace/runs" -v "$PWD/data:/workspace/data" IMAGE run
  add --gpus all --ipc=host for NVIDIA GPUs and --backend=nccl
TEXT
}

# Any user, known to the image or not, and a root file system that may be read-only.
writable() { [ -d "$1" ] && [ -w "$1" ]; }
temporary=${TMPDIR:-/tmp}
if ! writable "$temporary"; then
  temporary=/dev/shm
  export TMPDIR=$temporary
fi
writable "${HOME:-/}" && [ "$HOME" != / ] || HOME=$(mktemp -d "$temporary/home.XXXXXX")
user=$(id -un 2>/dev/null) || user=user$(id -u)
export HOME USER=$user LOGNAME=$user HYPOTHESIS_STORAGE_DIRECTORY=$HOME/hypothesis

command=${1:-help}
[ $# -eq 0 ] || shift
case $command in
  help | -h | --help) help ;;
  run) exec python -m reference.cifar10 run "$@" ;;
  doctor) exec python -m reference.doctor "$@" ;;
  pytest) exec python -m pytest -p no:cacheprovider "$@" ;;
  selftest | sbom) exec env -u PYTHONSAFEPATH python "/workspace/docker/inside/$command.py" "$@" ;;
  *) exec "$command" "$@" ;;
esac

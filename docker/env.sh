#!/usr/bin/env bash
# Makes the Python environment of a backend family in DIR, or brings it up to its locks; an environment that is complete
# is left as it is. The one recipe for local environments and for images.
#
#   docker/env.sh FAMILY DIR [EXTRA...]
#
#   FAMILY   gloo (for nccl too), horovod (the same with Horovod added), xla
#   EXTRA    dev (tests, lint, types), peer (pytorch-ignite, to compare with), test (tests alone), tpu (libtpu, anywhere)
#
# Environment:
#   PYTHON       interpreter of a new environment, 3.10 or newer (default: python3)
#   TORCH_INDEX  package index that torch and torchvision come from (default: pip's own). Builds for machines without a
#                GPU: https://download.pytorch.org/whl/cpu. An environment remembers it.
#   TORCH_LOCK   which of docker/locks torch is from (default: torch-gloo, torch-xla); for images
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
locks=$here/locks
# shellcheck source=docker/common.sh
. "$here/common.sh"

usage="usage: env.sh gloo|horovod|xla DIR [dev] [peer]"
[ $# -ge 2 ] || die "$usage"
dir=$2
case $1 in
  gloo) layers=(gloo runtime) ;;
  horovod) layers=(gloo runtime horovod) ;;
  xla)
    layers=(xla runtime)
    # libtpu serves TPU hosts only
    if compgen -G '/dev/accel*' >/dev/null || [ -n "${TPU_NAME:-}" ]; then layers+=(tpu); fi
    ;;
  *) die "unknown family '$1'. $usage" ;;
esac
for extra in "${@:3}"; do
  case $extra in
    dev | peer | test | tpu) layers+=("$extra") ;;
    *) die "unknown extra '$extra'. $usage" ;;
  esac
done
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  die "$python is not Python 3.10 or newer: name one that is, for example PYTHON=python3.11"
lock "$dir.lock" "$python"

# A layer is complete when its stamp holds the key of what it is made from. The stamp is written last.
stamps=$dir/.layers
torch_lock=${TORCH_LOCK:-torch-${layers[0]}}
index=${TORCH_INDEX-$(cat "$stamps/torch-index" 2>/dev/null || true)}

# hash WORD|FILE...: one hash of all words and of the contents of all files
hash() {
  "$python" -c 'import hashlib, os, sys
parts = [open(a, "rb").read() if os.path.isfile(a) else a.encode() for a in sys.argv[1:]]
print(hashlib.sha256(b"\0".join(parts)).hexdigest())' "$@"
}

key() {
  case $1 in
    gloo) hash "$index" "$locks"/{"$torch_lock",torch-constraints}.txt ;;
    xla) hash "$index" "$locks"/{"$torch_lock",xla}.txt ;;
    horovod) hash "$("$here/horovod-wheel.sh" --key "$dir/bin/python")" "$locks/horovod.txt" ;;
    *) hash "$locks/$1.txt" ;;
  esac
}

pip_install() {
  local quiet=--quiet
  [ ! -t 1 ] || quiet=--progress-bar=on
  run "$dir/bin/python" -m pip install "$quiet" --disable-pip-version-check "$@"
}

install() {
  case $1 in
    gloo | xla)
      new_venv
      # before torch, which then finds its dependencies in the versions of the lock
      pip_install --no-deps --require-hashes -r "$locks/runtime.txt"
      pip_install ${index:+--index-url "$index"} -r "$locks/$torch_lock.txt"
      [ "$1" = gloo ] || pip_install --no-deps --require-hashes -r "$locks/xla.txt"
      ;;
    horovod)
      run "$here/horovod-wheel.sh" "$dir/bin/python" >"$stamps/wheel"
      pip_install --no-deps --require-hashes -r "$locks/horovod.txt"
      pip_install --no-deps --force-reinstall "$(cat "$stamps/wheel")"
      ;;
    *) pip_install --no-deps --require-hashes -r "$locks/$1.txt" ;;
  esac
}

# pip cannot tell a half-written package from a whole one, nor one build of a torch version from another: a first layer
# that is incomplete or out of date is made anew, and the others with it.
new_venv() {
  if [ ! -d "$stamps" ] && [ -n "$(ls -A "$dir" 2>/dev/null)" ]; then
    die "$dir is not an environment that this script made: remove it, or choose another folder (VENV_HOME)"
  fi
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python has no venv module (Debian, Ubuntu: apt-get install python3-venv)"
  mkdir -p "$stamps"
  find "$stamps" -type f -delete
  find "$dir" -mindepth 1 -maxdepth 1 ! -name .layers -exec rm -rf {} +
  printf '%s' "$index" >"$stamps/torch-index"
  run "$python" -m venv "$dir"
}

for layer in "${layers[@]}"; do
  wanted=$(key "$layer")
  if [ "$wanted" != "$(cat "$stamps/$layer" 2>/dev/null)" ]; then
    echo "environment $dir: installing $layer"
    rm -f "$stamps/$layer"
    install "$layer"
    echo "$wanted" >"$stamps/$layer"
  fi
done

#!/usr/bin/env bash
# Makes an image that holds the wheels of one family in its root, for builds that reach no package index, and prints its name.
# The packages come through the pip of this machine, with its configuration.
#
#   WHEELHOUSE=$(docker/wheelhouse.sh FAMILY) docker/image.sh BACKEND        FAMILY: gloo, horovod, horovod-cuda, xla
#
# Environment:
#   TORCH_INDEX      package index of torch (default: pip's own)
#   TORCH_LOCK       the lock of torch (default: torch-gloo; for xla: torch-xla)
#   PYTHON           a Python 3.11, as Debian 12 has it (default: python3)
#   WHEELHOUSE_CACHE folder of the packages (default: ~/.cache/idist-workbench/wheelhouse)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=docker/common.sh
. "$here/common.sh"

python=${PYTHON:-python3}
case ${1:-} in
  gloo) torch=${TORCH_LOCK:-torch-gloo} locks=(runtime test) ;;
  horovod) torch=${TORCH_LOCK:-torch-gloo} locks=(runtime test horovod horovod-build horovod-source) ;;
  horovod-cuda) torch=${TORCH_LOCK:-torch-gloo} locks=(runtime test horovod horovod-build horovod-source horovod-cuda) ;;
  xla) torch=${TORCH_LOCK:-torch-xla} locks=(runtime test xla) ;;
  *) die "usage: wheelhouse.sh gloo|horovod|horovod-cuda|xla" ;;
esac
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
  die "$python is not Python 3.11, which Debian 12 has: name one, for example PYTHON=python3.11"

files=("$here/locks/$torch.txt")
for lock in "${locks[@]}"; do files+=("$here/locks/$lock.txt"); done
key=$(cat "${files[@]}" | sha256sum | cut -c 1-12)
image=localhost/idist-wheelhouse:$1-$key
if docker image inspect "$image" >/dev/null 2>&1; then
  echo "$image"
  exit
fi

cache=${WHEELHOUSE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/idist-workbench/wheelhouse}
lock "$cache/$1-$key.lock" "$python"
if [ ! -d "$cache/$1-$key" ]; then
  echo >&2 "collecting the packages of $1 in $cache/$1-$key"
  rm -rf "$cache/$1-$key.unfinished"
  fetch=("$python" -m pip download --quiet --disable-pip-version-check --dest "$cache/$1-$key.unfinished")
  for lock in "${locks[@]}"; do
    run "${fetch[@]}" --no-deps --require-hashes -r "$here/locks/$lock.txt" >&2
  done
  # with what torch needs beyond the runtime lock, its CUDA packages for example
  run "${fetch[@]}" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r "$here/locks/$torch.txt" \
    -c <(sed -n 's/ *\\$//; /^[a-z]/p' "$here/locks/runtime.txt") >&2
  mv "$cache/$1-$key.unfinished" "$cache/$1-$key"
fi
# with what earlier builds of the Horovod image have compiled (docker/image.sh)
compiled=${XDG_CACHE_HOME:-$HOME/.cache}/idist-workbench/compiled
extra=()
if [[ $1 == horovod* ]] && [ -d "$compiled" ]; then extra=(-C "$(dirname "$compiled")" compiled); fi
tar -C "$cache/$1-$key" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . "${extra[@]}" |
  docker import - "$image" >/dev/null
echo "$image"

#!/usr/bin/env bash
# Builds Horovod from its source package against the torch of PYTHON, unless the cache has that wheel already, and prints
# the path of the wheel. With --key only the name that the cache has for it.
#
#   docker/horovod-wheel.sh [--key] .venv/bin/python
#
# Environment:
#   WHEEL_CACHE      folder of finished wheels (default: ~/.cache/idist-workbench/wheels)
#   JOBS             compilers at once (default: number of cores)
#   CXX              C++ compiler (default: g++)
#   HVD_CXX_STD      C++ standard that the torch headers need (default: c++20)
#   HOROVOD_...      Horovod's own build options; Gloo alone by default, HOROVOD_WITH_MPI=1 adds MPI.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=docker/common.sh
. "$here/common.sh"

only_key=
if [ "${1:-}" = --key ]; then
  only_key=1
  shift
fi
[ $# -eq 1 ] || die "usage: horovod-wheel.sh [--key] PYTHON"
python=$1
cxx=${CXX:-g++}
export HVD_CXX_STD=${HVD_CXX_STD:-c++20}
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
[ "${HOROVOD_WITH_MPI:-}" = 1 ] || export HOROVOD_WITHOUT_MPI=1

# Everything that changes the wheel is in its key; pip's own cache would forget the version of torch. Of the HOROVOD_
# variables only the build options count, not those of a run (HOROVOD_TIMELINE and others).
key=$("$python" - "$here/horovod-wheel.sh" "$here/locks/horovod-source.txt" "$here/locks/horovod-build.txt" <<'PYTHON'
import hashlib, importlib.metadata, os, pathlib, platform, sys

parts = [importlib.metadata.version("torch"), sys.implementation.cache_tag, platform.machine(), *platform.libc_ver()]
options = tuple("HVD_ HOROVOD_WITH HOROVOD_GPU_ HOROVOD_NCCL_ HOROVOD_CUDA_ HOROVOD_CPU_ HOROVOD_BUILD_".split())
parts += [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(options)]
parts += [pathlib.Path(name).read_text() for name in sys.argv[1:]]
print(hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16])
PYTHON
) || die "no torch in the environment of $python: make it first (docker/env.sh gloo DIR)"
if [ -n "$only_key" ]; then
  echo "$key"
  exit
fi
cache=${WHEEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/idist-workbench/wheels}
lock "$cache/$key.lock" "$python"

wheels=("$cache/$key"/*.whl)
if [ -e "${wheels[0]}" ]; then
  echo "${wheels[0]}"
  exit
fi

missing=()
for tool in cmake make "$cxx"; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -e "$headers/Python.h" ] || missing+=("Python.h (python3-dev)")
[ ${#missing[@]} -eq 0 ] ||
  die "building Horovod needs what is missing here: $(IFS=,; echo "${missing[*]}"). Debian, Ubuntu: apt-get install cmake make g++ python3-dev"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Horovod's build files ask for C++14, torch's headers for a newer standard, and no option changes that: a compiler that
# reads the option differently does. -O2 without debug information builds in a quarter of the time, and -Wfatal-errors
# ends the compilation at the first error instead of thousands of lines later.
cat >"$work/hvd-cxx" <<'WRAPPER'
#!/bin/sh
for a in "$@"; do
  shift
  case "$a" in
    -std=c++11 | -std=c++14 | -std=gnu++11 | -std=gnu++14) a="-std=$HVD_CXX_STD" ;;
    -g) continue ;;
    -O3) a=-O2 ;;
  esac
  set -- "$@" "$a"
done
exec "$HVD_CXX" -w -Wfatal-errors "$@"
WRAPPER
chmod +x "$work/hvd-cxx"

mkdir "$work/build"
if [ -z "${HOROVOD_GPU_OPERATIONS:-}" ]; then
  # A CUDA build of torch makes Horovod ask for a complete CUDA toolkit as soon as there is an nvcc. Hide it.
  cat >"$work/build/sitecustomize.py" <<'PYTHON'
import os
import shutil

_which, _exists = shutil.which, os.path.exists
shutil.which = lambda name, *args, **kwargs: None if name == "nvcc" else _which(name, *args, **kwargs)
os.path.exists = lambda path: path != "/usr/local/cuda" and _exists(path)
PYTHON
fi

jobs=${JOBS:-$("$python" -c 'import os; print(os.cpu_count())')}
log=$cache/$key.log
echo >&2 "building Horovod (about 6 minutes on 2 cores; log: $log)"
rm -rf "$cache/$key.unfinished"
build() {
  "$python" -m pip install -q --disable-pip-version-check --target "$work/build" --require-hashes \
    -r "$here/locks/horovod-build.txt" &&
    env TMPDIR="$work" PYTHONPATH="$work/build" MAKEFLAGS="-j$jobs" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
      CXX="$work/hvd-cxx" HVD_CXX="$cxx" \
      "$python" -m pip wheel -v --disable-pip-version-check --require-hashes --no-deps --no-build-isolation --no-cache-dir \
      -w "$cache/$key.unfinished" -r "$here/locks/horovod-source.txt"
}
if ! run build >"$log" 2>&1; then
  grep -m 1 -A 4 -E 'fatal error: |: error: |CMake Error' "$log" >&2 || tail -n 5 "$log" >&2
  die "Horovod does not build here; the whole output is in $log"
fi
mv "$cache/$key.unfinished" "$cache/$key" # in one step: whoever finds the wheel finds all of it
echo "$cache/$key"/*.whl

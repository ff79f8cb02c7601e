#!/usr/bin/env bash
# Renews the locks in docker/locks from their *.in files: newest versions that agree with one another, for every supported
# Python, with the hashes of all their files. torch itself is pinned by hand in torch-*.txt, without hashes, because which
# index it comes from is the user's choice (TORCH_INDEX).
#
#   docker/lock.sh [UV]          UV: the uv program (default: uv)
#
# Without arguments for it, nothing that is pinned already moves: delete a line or a lock to let it move, or set UPGRADE=1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/locks"
uv=${1:-uv}

# compile NAME OPTION...: NAME.in to NAME.txt
compile() {
  local name=$1
  shift
  "$uv" pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate --no-emit-index-url \
    --custom-compile-command "make lock" ${UPGRADE:+--upgrade} "$@" --output-file "$name.txt" "$name.in"
}

compile runtime
compile horovod --constraint runtime.txt
compile horovod-build
compile horovod-source --no-deps
compile horovod-cuda
compile xla --no-deps
compile tpu --constraint runtime.txt
compile dev --constraint runtime.txt
compile test --constraint dev.txt
compile peer --constraint runtime.txt --no-deps

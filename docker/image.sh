#!/usr/bin/env bash
# Builds the image of a backend with what `docker build` or `podman build` alone can do; what `make image` calls.
#
#   docker/image.sh BACKEND            none, gloo; nccl, horovod; xla-tpu
#   docker/image.sh --name BACKEND     prints the name of the image, and builds nothing
#
# Environment:
#   ENGINE       docker or podman (default: the first that works)
#   IMAGE        name of the image (default: idist-workbench:FAMILY)
#   BASE_IMAGE   a Debian 12 (default: the dated one that the Dockerfile names)
#   TORCH_INDEX  package index of torch (default: the Dockerfile's)
#   TORCH_LOCK   which lock torch is from: torch-novision makes a small image without torchvision
#   WHEELHOUSE   an image that holds wheels, instead of package indexes: docker/wheelhouse.sh
#   HOROVOD_GPU_OPERATIONS, HOROVOD_BUILD_CUDA_CC_LIST, HVD_CXX_STD   how Horovod is compiled: NCCL (default) or nothing, for an
#                image without CUDA; GPU architectures; C++ standard of torch's headers (torch-novision: c++17)
#   EXTRAS       for xla-tpu: tpu (default) or nothing, for an image without libtpu
#   NO_CACHE=1   builds every step again, and compiles Horovod again
#   REVISION     of the code, for the labels (default: git tells)
#   BUILD_OPTIONS  more options for the engine's build
#   SOURCE_DATE_EPOCH  the time that the image bears (default: that of the commit)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  printf 'image.sh: %s\n' "$*" >&2
  exit 2
}

only_name=
if [ "${1:-}" = --name ]; then
  only_name=1
  shift
fi
[ $# -eq 1 ] || die "usage: image.sh [--name] none|gloo|nccl|horovod|xla-tpu"
case $1 in
  none | gloo) family=gloo ;;
  nccl | horovod) family=nccl-horovod ;;
  xla-tpu) family=xla ;;
  *) die "unknown backend '$1': use none, gloo, nccl, horovod or xla-tpu" ;;
esac
image=${IMAGE:-idist-workbench:$family}
if [ -n "$only_name" ]; then
  echo "$image"
  exit
fi

if [ -z "${ENGINE:-}" ]; then
  for ENGINE in docker podman; do "$ENGINE" version >/dev/null 2>&1 && break; done
fi
"$ENGINE" version >/dev/null 2>&1 || die "no container engine answers ($ENGINE version fails): start docker, or install podman"

dockerfile=docker/$family.Dockerfile
base=${BASE_IMAGE:-$(sed -n 's/^ARG BASE_IMAGE=//p' "$dockerfile")}
"$ENGINE" image inspect "$base" >/dev/null 2>&1 || "$ENGINE" pull --quiet "$base" >/dev/null ||
  die "the base image $base is neither here nor can it be pulled: set BASE_IMAGE"
digest=$("$ENGINE" image inspect --format '{{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}{{.Id}}{{end}}' "$base")

revision=${REVISION:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
[ -n "${REVISION:-}" ] || [ -z "$(git status --porcelain 2>/dev/null)" ] || revision+=-dirty
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
arguments=(
  BASE_IMAGE="$base" BASE_DIGEST="${digest##*@}" REVISION="$revision" SOURCE_DATE_EPOCH="$epoch"
  VERSION="$(sed -n 's/^__version__ = "\(.*\)"/\1/p' reference/__init__.py)"
  CREATED="$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)"
)
for name in TORCH_INDEX TORCH_LOCK WHEELHOUSE HVD_CXX_STD NO_CACHE EXTRAS ${!HOROVOD_@}; do
  [ -z "${!name+set}" ] || ! grep -q "^ARG $name" "$dockerfile" || arguments+=("$name=${!name}")
done

build=("$ENGINE" build --network host --file "$dockerfile")
[ "${NO_CACHE:-}" != 1 ] || build+=(--no-cache)
read -r -a more <<<"${BUILD_OPTIONS:-}"
build+=("${more[@]}")
for argument in "${arguments[@]}"; do build+=(--build-arg "$argument"); done
SECONDS=0
DOCKER_BUILDKIT=1 "${build[@]}" --tag "$image" .
cache=${XDG_CACHE_HOME:-$HOME/.cache}/idist-workbench
if [ "$family $ENGINE" = "nccl-horovod docker" ]; then # the wheel is there, so this compiles nothing
  DOCKER_BUILDKIT=1 "${build[@]/--no-cache/--quiet}" --target wheels --output "type=local,dest=$cache/compiled" . >/dev/null
fi

# what docker/report.py makes docs/images.md of
records=$cache/images
mkdir -p "$records"
id=$("$ENGINE" image inspect --format '{{.Id}}' "$image")
printf '{"image": "%s", "id": "%s", "seconds": %d, "cores": %d, "time": %d}\n' "$image" "$id" "$SECONDS" "$(nproc)" "$(date +%s)" \
  >"$records/${image##*[:/]}${NO_CACHE:+-from-nothing}.json"
echo "$image: $id, $("$ENGINE" image inspect --format '{{.Size}}' "$image") bytes, built in $SECONDS seconds"

#!/usr/bin/env bash
# Runs a launcher, or any command, in a container of a backend's image, as the user who calls and with data and runs mounted at
# their own paths; what launchers/run.sh calls when RUNTIME is a container runtime. The code is the image's.
#
#   RUNTIME=docker BACKEND=gloo NP=2 launchers/container.sh launchers/torchrun.sh -m reference.cifar10 run --backend=gloo
#   BACKEND=gloo launchers/container.sh --choose       prints the RUNTIME that serves here, and why
#
# Environment:
#   RUNTIME    docker, podman, apptainer or charliecloud
#   BACKEND    whose image (default: gloo); nccl gets all GPUs, and so does horovod where there are any
#   IMAGE      docker, podman: a name (default: docker/image.sh --name BACKEND); apptainer, charliecloud: a file or folder
#   SHM_SIZE   size of /dev/shm, which loader workers and NCCL use (default: half a gigabyte for each of NP processes)
#   DRY_RUN=1  print the command and start nothing
set -euo pipefail
clone=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

die() {
  printf 'container.sh: %s\n' "$*" >&2
  exit 2
}

inspect() { "$1" image inspect --format "$2" "${3:-$image}" 2>/dev/null; }

# differs ENGINE: how the code of the image differs from the clone's; nothing where it is the same
differs() {
  local theirs ours
  theirs=$(inspect "$1" '{{index .Config.Labels "org.opencontainers.image.revision"}}')
  ours=$(git -C "$clone" rev-parse HEAD 2>/dev/null) || ours=unknown
  if [ "$theirs" != "$ours" ] || [ -n "$(git -C "$clone" status --porcelain 2>/dev/null)" ]; then
    echo "its code is of revision ${theirs:0:12}, not that of this clone"
  fi
}

choose() {
  local engine difference reason=
  for engine in docker podman; do
    timeout 10 "$engine" version >/dev/null 2>&1 || continue
    if ! inspect "$engine" '{{.Id}}' >/dev/null; then
      reason=${reason:-$engine has no image $image}
    elif difference=$(differs "$engine") && [ -n "$difference" ]; then
      reason=${reason:-the image $image is not used: $difference}
    else
      echo "$engine image $image, with the code of this clone"
      return
    fi
  done
  echo "venv ${reason:-no container engine works here}"
}

backend=${BACKEND:-gloo}
image=${IMAGE:-$("$clone/docker/image.sh" --name "$backend")} || exit
if [ "${1:-}" = --choose ]; then
  choose
  exit
fi
[ $# -gt 0 ] || die "which command? For example: RUNTIME=docker NP=2 $0 launchers/torchrun.sh -m reference.cifar10 run"
case ${RUNTIME:=docker} in
  docker | podman) ;;
  apptainer | charliecloud) [ -n "${IMAGE:-}" ] || die "RUNTIME=$RUNTIME needs an image: set IMAGE (docker/README.md says how)" ;;
  *) die "RUNTIME=$RUNTIME is unknown: use docker, podman, apptainer or charliecloud" ;;
esac

# What the options name is mounted where it is, and named in full. Charliecloud can only mount on folders that the image has.
mounts=() inside=''
place() { # place OPTION PATH: mounts what the option names, and sets `inside`, its path in the container
  local path folder target mount
  path=$(realpath -m -- "${2/#\~/$HOME}")
  [[ $path != *[,:]* ]] || die "--$1: the path $path has a comma or a colon, and cannot be mounted: use another"
  case $1 in
    output_path | log_dir) # made here, so that it is the user's own
      folder=$path
      [ "${DRY_RUN:-}" = 1 ] || mkdir -p "$path"
      ;;
    *)
      [ -e "$path" ] || die "--$1: there is no $path"
      folder=$path
      # a checkpoint stands in its run's folder
      if [ "$1" = resume_from ] && [ -f "$path" ]; then folder=$(dirname "$path"); fi
      ;;
  esac
  target=$folder
  if [ "$RUNTIME" = charliecloud ]; then
    case $1 in
      output_path) target=/workspace/runs ;;
      log_dir) target=/workspace/run-logs ;;
      data_path) target=/workspace/data ;;
      *) die "--$1: Charliecloud mounts the folders of data and runs alone: give it as a file in one of them" ;;
    esac
  fi
  inside=$target${path#"$folder"}
  for mount in "${mounts[@]}"; do [ "$mount" != "$folder:$target" ] || return 0; done
  mounts+=("$folder:$target")
}

command=() runs='' given=' '
while [ $# -gt 0 ]; do
  option=${1%%=*}
  option=${option#--}
  option=${option//-/_}
  case $1 in
    --data[_-]path* | --output[_-]path* | --resume[_-]from* | --log[_-]dir* | --config*)
      if [[ $1 == *=* ]]; then
        value=${1#*=}
      else
        [ $# -ge 2 ] || die "$1 needs a value"
        value=$2
        shift
      fi
      case $option=$value in
        resume_from=auto | resume_from=restart) ;;
        *) place "$option" "$value" && value=$inside ;;
      esac
      given+="$option "
      [ "$option" != log_dir ] || option=log-dir
      command+=("--$option=$value")
      ;;
    launchers/*) command+=("/workspace/$1") ;;
    *)
      [ "$1" != reference.cifar10 ] || runs=1
      command+=("$1")
      if [ "$1" = experiments.supervise ] && [[ " $* " != *' --log-dir'* ]]; then
        place log_dir "run-logs/$(date +%Y%m%d-%H%M%S)-$$"
        command+=(--log-dir="$inside")
      fi
      ;;
  esac
  shift
done
if [ -n "$runs" ] && [[ $given != *' output_path '* ]]; then
  place output_path output-cifar10
  command+=(--output_path="$inside")
fi
if [ -n "$runs" ] && [[ $given != *' data_path '* ]] && [ -e data ]; then
  place data_path data
  command+=(--data_path="$inside")
fi

gpus=
if [ "$backend" = nccl ] || { [ "$backend" = horovod ] && nvidia-smi -L >/dev/null 2>&1; }; then gpus=1; fi

# The engines start with a clean environment; these go in. The others keep the caller's.
# PYTHONSAFEPATH: the image's code is imported, also where the working directory holds other code.
passed=(RUNTIME="$RUNTIME" IMAGE="$image" PYTHONSAFEPATH=1)
for name in NP RESTARTS NNODES NODE_RANK MASTER_ADDR MASTER_PORT HOSTS OMP_NUM_THREADS ${!GLOO_@} ${!NCCL_@} ${!TORCH_@} ${!HOROVOD_@} \
  ${!CLEARML_@} ${!PJRT_@} ${!XLA_@} ${!TPU_@}; do
  if [ -n "${!name:-}" ] && [ "$name" != TORCH_INDEX ] && [ "$name" != TORCH_LOCK ]; then passed+=("$name=${!name}"); fi
done

case $RUNTIME in
  docker | podman)
    if digest=$(inspect "$RUNTIME" '{{.Id}}'); then
      passed+=(IMAGE_DIGEST="$digest")
      note=$(differs "$RUNTIME")
      [ -z "$note" ] || echo "container.sh: image $image: $note; renew it with: make image BACKEND=$backend" >&2
    elif [ "${DRY_RUN:-}" != 1 ]; then
      die "$RUNTIME has no image $image, or does not run: make image BACKEND=$backend"
    fi
    # The host's network, as without a container: other nodes reach the processes, and their host name is the machine's. The
    # folder's name too, so that the paths that a run prints hold outside.
    start=("$RUNTIME" run --rm --network host --workdir "$PWD" --shm-size "${SHM_SIZE:-$((512 * ${NP:-1}))m}")
    if [ "$RUNTIME" = podman ] && [ "$(id -u)" -ne 0 ]; then
      start+=(--userns keep-id)
    elif [ "$RUNTIME" = podman ] || ! docker info --format '{{.SecurityOptions}}' 2>/dev/null | grep -q rootless; then
      start+=(--user "$(id -u):$(id -g)")
    else
      start+=(--user 0:0) # rootless docker: the user is the container's root
    fi
    if [ -n "$gpus" ]; then
      if [ "$RUNTIME" = docker ]; then start+=(--gpus all); else start+=(--device nvidia.com/gpu=all); fi
    fi
    for device in /dev/accel* /dev/vfio/*; do # TPUs
      if [ "$backend" = xla-tpu ] && [ -e "$device" ]; then start+=(--device "$device"); fi
    done
    for mount in "${mounts[@]}"; do start+=(--mount "type=bind,source=${mount%:*},target=${mount#*:}"); done
    for variable in "${passed[@]}"; do start+=(--env "$variable"); done
    start+=("$image")
    ;;
  apptainer)
    start=(env "${passed[@]}" apptainer exec --pwd /workspace ${gpus:+--nv})
    for mount in "${mounts[@]}"; do start+=(--bind "$mount"); done
    start+=("$image" /workspace/docker/inside/entrypoint.sh)
    ;;
  charliecloud)
    start=(env "${passed[@]}" ch-run --cd /workspace --set-env="PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin" --set-env=PYTHONPATH=/workspace)
    for mount in "${mounts[@]}"; do start+=(--bind "$mount"); done
    start+=("$image" -- /workspace/docker/inside/entrypoint.sh)
    ;;
esac

if [ "${DRY_RUN:-}" = 1 ]; then
  printf '%q' "${start[0]}" && printf ' %q' "${start[@]:1}" "${command[@]}" && echo
  exit
fi
exec "${start[@]}" "${command[@]}"

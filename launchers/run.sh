#!/usr/bin/env bash
# Trains CIFAR-10 (python -m reference.cifar10 run) with a backend and a launcher; what `make run` calls.
#
#   BACKEND=gloo NP=2 LAUNCHER=torchrun launchers/run.sh [TRAINER OPTION...]
#
# Environment:
#   BACKEND   none, gloo, nccl, horovod, xla-tpu (default: gloo)
#   NP        processes on this node (default: 2; nccl: the number of GPUs)
#   LAUNCHER  default: torchrun; horovod: horovodrun; xla-tpu: spawn; none: plain
#   DATASET   cifar10, images, digits, fake (default: the trainer chooses)
#   RUNTIME   venv (docker/with.sh), or docker, podman, apptainer, charliecloud (launchers/container.sh). Default: an engine that
#             works and has an image with the code of this clone, else venv
#   RESTARTS  how often a run that failed starts again, from its newest valid checkpoint (default: 0)
#   TIMEOUT, STARTUP_TIMEOUT, SILENCE_TIMEOUT   seconds: for the whole run (default: no limit), until all processes have met
#             (600), without a line or progress (1800)
#   LOG_DIR   folder for what each rank prints and how the run ended (default: run-logs/<time>)
#   and what the launchers (launchers/common.sh) and the environments (docker/with.sh) understand
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  printf 'run: %s\n' "$*" >&2
  exit 2
}

gpus() {
  local count
  count=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || count=1
  echo "$count"
}

np=2
case ${BACKEND:=gloo} in
  none) launchers=(plain) np=1 ;;
  gloo) launchers=(torchrun torch_distributed_launch spawn mpirun slurm slurm_torchrun) ;;
  nccl) launchers=(torchrun torch_distributed_launch spawn mpirun slurm slurm_torchrun) np=$(gpus) ;;
  horovod) launchers=(horovodrun spawn slurm) ;;
  xla-tpu) launchers=(spawn) ;;
  *) die "BACKEND=$BACKEND is unknown: use none, gloo, nccl, horovod or xla-tpu" ;;
esac
case ${LAUNCHER:=${launchers[0]}} in
  plain | torchrun | torch_distributed_launch | spawn | horovodrun | mpirun) script=launchers/$LAUNCHER.sh ;;
  slurm | slurm_torchrun) script=launchers/$LAUNCHER.sbatch ;;
  *) die "LAUNCHER=$LAUNCHER is unknown: use torchrun, torch_distributed_launch, spawn, horovodrun, mpirun, slurm," \
    "slurm_torchrun or plain" ;;
esac
[[ " ${launchers[*]} " == *" $LAUNCHER "* ]] ||
  die "LAUNCHER=$LAUNCHER cannot start BACKEND=$BACKEND: use LAUNCHER=$(IFS='|' && echo "${launchers[*]}")"
[[ ${NP:=$np} =~ ^[1-9][0-9]*$ ]] || die "NP=$NP is not a number of processes: use 1, 2, 3, ..."
[ "$BACKEND" != none ] || [ "$NP" -eq 1 ] || die "NP=$NP needs a backend: BACKEND=none is one process"
case ${DATASET:=} in
  '' | cifar10 | images | digits | fake) ;;
  *) die "DATASET=$DATASET is unknown: use cifar10, images, digits or fake" ;;
esac
for name in RESTARTS TIMEOUT STARTUP_TIMEOUT SILENCE_TIMEOUT; do
  [[ ${!name:-0} =~ ^[0-9]+$ ]] || die "$name=${!name} is not a whole number"
done
export BACKEND NP RESTARTS=${RESTARTS:-0}

within=(docker/with.sh "$BACKEND" --)
if [[ $LAUNCHER != slurm* ]]; then # Slurm's scripts start containers themselves
  reason=
  [ -n "${RUNTIME:-}" ] || read -r RUNTIME reason < <(launchers/container.sh --choose)
  case $RUNTIME in
    venv) ;;
    docker | podman | apptainer | charliecloud) within=(launchers/container.sh) ;;
    *) die "RUNTIME=$RUNTIME is unknown: use venv, docker, podman, apptainer or charliecloud" ;;
  esac
  export RUNTIME
  echo "run: RUNTIME=$RUNTIME${reason:+ ($reason)}" >&2
fi

options=()
[ "$BACKEND" = none ] || options+=(--backend="$BACKEND")
[ -z "$DATASET" ] || options+=(--dataset="$DATASET")
if [ "$DATASET" = digits ] || { [ -z "$DATASET$*" ] && [ ! -e data ]; }; then
  options+=(--batch_size=64 --learning_rate=0.1) # 1,438 images are hardly three batches of the usual 512
fi
if [[ $LAUNCHER == slurm* ]]; then
  options+=(--output_path=output-cifar10/%j --resume_from=auto) # a job that is requeued goes on where it was
fi
if [ "$RESTARTS" -gt 0 ] && [[ " $*" != *' --resume_from'* ]]; then
  options+=(--resume_from=restart)
fi
command=("$script" -m reference.cifar10 run "${options[@]}" "$@")
DRY_RUN=1 "${command[@]}" >/dev/null # what the launcher refuses is refused before an environment is made
if [ "${DRY_RUN:-}" != 1 ]; then # and so is what the trainer refuses: a launcher would bury it under its own report
  "${within[@]}" python -m reference.cifar10 check --nproc_per_node=$((NP * ${NNODES:-1})) "${options[@]}" "$@"
fi
if [ "${DRY_RUN:-}" = 1 ] || [[ $LAUNCHER == slurm* ]]; then # a job is under Slurm's supervision
  exec "${within[@]}" "${command[@]}"
fi
limits=(--startup-timeout="${STARTUP_TIMEOUT:-600}" --silence-timeout="${SILENCE_TIMEOUT:-1800}"
  ${TIMEOUT:+--timeout="$TIMEOUT"} ${LOG_DIR:+--log-dir="$LOG_DIR"})
[[ $LAUNCHER == torch* ]] || limits+=(--restarts="$RESTARTS") # torchrun restarts its processes itself
exec "${within[@]}" python -m experiments.supervise "${limits[@]}" -- "${command[@]}"

# Sourced by the launchers: the variables that they share, and how they start a command.
#
#   NP           processes on this node
#   NNODES       nodes (default 1); several need NODE_RANK, MASTER_ADDR and MASTER_PORT on each
#   NODE_RANK    number of this node, from 0; node 0 is MASTER_ADDR
#   RESTARTS     torchrun and torch.distributed.launch: how often they start failed processes again (default 0)
#   OMP_NUM_THREADS  threads of a process (default: cores / NP, at least 1)
#   DRY_RUN=1    print the command and start nothing
#
# The arguments of a launcher are the program and its arguments, as they would follow `python`.
# shellcheck shell=bash

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 2
}

[ $# -gt 0 ] || die "which program? For example: NP=2 $0 -m reference.cifar10 run --backend=gloo"
[[ ${NP:=1} =~ ^[1-9][0-9]*$ ]] || die "NP=$NP is not a number of processes: use 1, 2, 3, ..."
[[ ${RESTARTS:=0} =~ ^[0-9]+$ ]] || die "RESTARTS=$RESTARTS is not a whole number"
[[ ${NNODES:=1} =~ ^[1-9][0-9]*$ ]] || die "NNODES=$NNODES is not a number of nodes: use 1, 2, 3, ..."
if [ "$NNODES" -gt 1 ]; then
  for name in NODE_RANK MASTER_ADDR MASTER_PORT; do
    [ -n "${!name:-}" ] || die "NNODES=$NNODES needs $name too"
  done
fi

# One rule for every launcher: torchrun alone would give a process one thread, and a comparison would measure that.
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > NP ? cores / NP : 1))}

# start COMMAND...: this process becomes the command, so signals reach it and its exit code is ours.
start() {
  if [ "${DRY_RUN:-}" = 1 ]; then
    printf 'OMP_NUM_THREADS=%q' "$OMP_NUM_THREADS"
    [ -z "${TORCH_DISABLE_SHARE_RDZV_TCP_STORE:-}" ] || printf ' TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1'
    printf ' %q' "$@"
    echo
    exit
  fi
  exec "$@"
}

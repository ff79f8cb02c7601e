#!/usr/bin/env bash
# Open MPI's mpirun: started once, on one host; reaches other hosts by ssh. It only starts the processes: they talk
# through gloo or nccl, for which rank 0's host and a port are passed on.
#
#   NP=2 launchers/mpirun.sh -m reference.cifar10 run --backend=gloo
#   NP=2 HOSTS=node0:2,node1:2 launchers/mpirun.sh …             # NP processes on each host
#
#   MASTER_ADDR, MASTER_PORT   default: the first of the hosts, and a port that is probably free
set -euo pipefail
# shellcheck source=launchers/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[ "$NNODES" -eq 1 ] || die "NNODES=$NNODES: mpirun wants HOSTS=node0:$NP,node1:$NP instead"
IFS=, read -r -a hosts <<<"${HOSTS:-localhost:$NP}"
for host in "${hosts[@]}"; do
  [ "$host" = "${host%:*}:$NP" ] || die "HOSTS=${HOSTS:-}: write $host as ${host%%:*}:$NP, with the NP=$NP processes of a host"
done
first=${hosts[0]%:*}
MASTER_ADDR=${MASTER_ADDR:-${first/#localhost/127.0.0.1}} MASTER_PORT=${MASTER_PORT:-$((12000 + $$ % 17000))}
as_root=()
[ "$(id -u)" -ne 0 ] || as_root=(--allow-run-as-root)
pass=(-x MASTER_ADDR="$MASTER_ADDR" -x MASTER_PORT="$MASTER_PORT")
for name in OMP_NUM_THREADS PATH PYTHONPATH; do
  [ -z "${!name:-}" ] || pass+=(-x "$name")
done
# --bind-to none: a process may run on all cores, as with the other launchers
start mpirun "${as_root[@]}" --host "$(IFS=, && echo "${hosts[*]}")" --bind-to none "${pass[@]}" python "$@"

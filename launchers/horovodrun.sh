#!/usr/bin/env bash
# horovodrun: started once, on one host; reaches other hosts by ssh.
#
#   NP=2 launchers/horovodrun.sh -m reference.cifar10 run --backend=horovod
#   NP=2 HOSTS=node0:2,node1:2 launchers/horovodrun.sh …          # NP processes on each host
set -euo pipefail
# shellcheck source=launchers/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[ "$NNODES" -eq 1 ] || die "NNODES=$NNODES: horovodrun wants HOSTS=node0:$NP,node1:$NP instead"
IFS=, read -r -a hosts <<<"${HOSTS:-localhost:$NP}"
start horovodrun -np $((NP * ${#hosts[@]})) -H "$(IFS=, && echo "${hosts[*]}")" python "$@"

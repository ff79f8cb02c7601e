#!/usr/bin/env bash
# horovodrun: started once, on one host; reaches other hosts by ssh.
#
#   NP=2 launchers/horovodrun.sh -m reference.cifar10 run --backend=horovod
#   NP=4 HOSTS=node0:2,node1:2 launchers/horovodrun.sh …          # NP is the number of all processes here
set -euo pipefail
# shellcheck source=launchers/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[ "$NNODES" -eq 1 ] || die "NNODES=$NNODES: horovodrun wants HOSTS=node0:2,node1:2 instead"
start horovodrun -np "$NP" -H "${HOSTS:-localhost:$NP}" python "$@"

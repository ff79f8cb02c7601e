#!/usr/bin/env bash
# The program starts its processes itself (idist.Parallel), so it gets the layout as options.
#
#   NP=2 launchers/spawn.sh -m reference.cifar10 run --backend=gloo
#   NP=2 NNODES=2 NODE_RANK=0 MASTER_ADDR=node0 MASTER_PORT=29500 launchers/spawn.sh …       # and NODE_RANK=1 on node1
set -euo pipefail
# shellcheck source=launchers/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

layout=(--nproc_per_node="$NP")
if [ "$NNODES" -gt 1 ]; then
  layout+=(--nnodes="$NNODES" --node_rank="$NODE_RANK" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT")
fi
start python "$@" "${layout[@]}"

#!/usr/bin/env bash
# torchrun: one agent on each node starts and watches NP processes.
#
#   NP=2 launchers/torchrun.sh -m reference.cifar10 run --backend=gloo
#   NP=2 NNODES=2 NODE_RANK=0 MASTER_ADDR=node0 MASTER_PORT=29500 launchers/torchrun.sh …    # and NODE_RANK=1 on node1
set -euo pipefail
# shellcheck source=launchers/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ "$NNODES" -gt 1 ]; then
  place=(--nnodes="$NNODES" --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT")
else
  # Not --standalone: it needs a host name that resolves. Port 0 is any free port.
  place=(--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0 --local-addr=127.0.0.1)
fi
if [ "$RESTARTS" -gt 0 ]; then
  # torch 2.13 and later: without this a restart often finds what the first start left in the agents' store, and fails
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  place+=(--max-restarts="$RESTARTS")
fi
start torchrun --nproc-per-node="$NP" "${place[@]}" "$@"

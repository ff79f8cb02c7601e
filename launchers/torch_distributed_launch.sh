#!/usr/bin/env bash
# torch.distributed.launch, the predecessor of torchrun: still in torch, deprecated, and still in many scripts.
#
#   NP=2 launchers/torch_distributed_launch.sh -m reference.cifar10 run --backend=gloo
set -euo pipefail
# shellcheck source=launchers/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ "$NNODES" -gt 1 ]; then
  place=(--nnodes="$NNODES" --node_rank="$NODE_RANK" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT")
else
  # Without these it takes port 29500, and a second run on the same host fails.
  place=(--rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:0 --local_addr=127.0.0.1)
fi
if [ "$RESTARTS" -gt 0 ]; then
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # see torchrun.sh
  place+=(--max_restarts="$RESTARTS")
fi
# --use_env: the rank stands in the environment, as with torchrun, and no --local-rank is added to the program's arguments.
start python -m torch.distributed.launch --use_env --nproc_per_node="$NP" "${place[@]}" "$@"

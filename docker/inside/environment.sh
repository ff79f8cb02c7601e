#!/bin/sh
# Makes the environment of an image, /opt/venv, with the recipe of the local environments (docker/env.sh); runs in the builder
# stage of its image.
#
#   environment.sh FAMILY [EXTRA...]
#
# Wheels in /wheelhouse, if there are any, replace all package indexes. HOROVOD_GPU_OPERATIONS=NCCL compiles Horovod for GPUs.
set -eu
recipe=$(dirname "$0")
export SOURCE_DATE_EPOCH=315532800 # 1980: bytecode that holds no times; not the commit's, which would make every commit install anew
if [ -n "$(ls -A /wheelhouse)" ]; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheelhouse TORCH_INDEX=; fi
export WHEEL_CACHE=/wheels # a compiled Horovod; an earlier build may have left it in the wheelhouse
mkdir $WHEEL_CACHE
if [ "${NO_CACHE:-}" != 1 ] && [ -d /wheelhouse/compiled ]; then cp -r /wheelhouse/compiled/. $WHEEL_CACHE; fi
if [ "${HOROVOD_GPU_OPERATIONS:-}" = NCCL ]; then
  "$recipe/env.sh" gloo /opt/venv test
  "$recipe/cuda.sh" "$recipe/locks/horovod-cuda.txt"
  export CUDA_HOME=/opt/cuda HOROVOD_CUDA_HOME=/opt/cuda HOROVOD_NCCL_HOME=/opt/nccl HOROVOD_NCCL_LINK=SHARED
  export PATH="/opt/cuda/bin:$PATH" NVCC_APPEND_FLAGS="-std=$HVD_CXX_STD"
else
  unset HOROVOD_GPU_OPERATIONS HOROVOD_BUILD_CUDA_CC_LIST
fi
family=$1
shift
"$recipe/env.sh" "$family" /opt/venv test "$@"

# What only compilers and the packages' own tests read.
rm -rf /opt/venv.lock /opt/venv/.layers /wheels/*.lock /wheels/*.log
cd /opt/venv/lib/python3*/site-packages
find . -type d -name tests -prune -exec rm -rf {} +
rm -rf torch/include torch/share torch/test
find torch/lib -name '*.a' -delete

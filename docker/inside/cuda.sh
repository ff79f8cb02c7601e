#!/bin/sh
# A CUDA toolkit in /opt/cuda and NCCL in /opt/nccl, to compile Horovod with, made of the packages of the CUDA release that the
# torch in /opt/venv uses; runs in a builder stage. Nothing of it reaches an image: torch brings what runs.
#
#   cuda.sh LOCK
set -eu
/opt/venv/bin/python -m pip install --quiet --target /opt/cuda-packages --no-deps --require-hashes -r "$1"
mv /opt/cuda-packages/nvidia/cu* /opt/cuda
rm -r /opt/cuda-packages
cd /opt/venv/lib/python3*/site-packages/nvidia
cp --recursive --symbolic-link --no-clobber "$PWD"/cu[0-9]*/. /opt/cuda
ln -s lib /opt/cuda/lib64
for library in /opt/cuda/lib/lib*.so.*; do # linkers look for names without a version
  [ -e "${library%.so.*}.so" ] || ln -s "$library" "${library%.so.*}.so"
done
mkdir -p /opt/nccl/lib
ln -s "$PWD/nccl/include" /opt/nccl/include
ln -s "$PWD/nccl/lib/libnccl.so.2" /opt/nccl/lib/libnccl.so

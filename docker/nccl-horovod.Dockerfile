# The image of NVIDIA GPUs: nccl, Horovod, and gloo. Built by docker/image.sh horovod, or docker-bake.hcl. torch brings its own
# CUDA; Horovod is compiled in the builder stage, with HOROVOD_GPU_OPERATIONS= for machines without a GPU.
ARG BASE_IMAGE=debian:bookworm-20260824-slim
# An image whose root holds wheels (docker/wheelhouse.sh); none: package indexes are asked
ARG WHEELHOUSE=scratch

FROM ${WHEELHOUSE} AS wheelhouse

FROM scratch AS recipe
COPY docker/env.sh docker/common.sh docker/horovod-wheel.sh docker/inside/environment.sh docker/inside/cuda.sh /
COPY docker/locks/runtime.txt docker/locks/test.txt docker/locks/torch-*.txt docker/locks/horovod*.txt /locks/

FROM ${BASE_IMAGE} AS base
RUN --mount=type=bind,source=docker/inside/debian.sh,target=/debian.sh \
    --mount=type=bind,source=docker/locks/debian-runtime.txt,target=/debian-runtime.txt \
    --mount=type=bind,source=docker/locks/debian-horovod.txt,target=/debian-horovod.txt \
    /debian.sh /debian-runtime.txt /debian-horovod.txt

FROM base AS builder
RUN --mount=type=bind,source=docker/inside/debian.sh,target=/debian.sh \
    --mount=type=bind,source=docker/locks/debian-build.txt,target=/debian-build.txt \
    --mount=type=bind,source=docker/locks/debian-build-horovod.txt,target=/debian-build-horovod.txt \
    /debian.sh /debian-build.txt /debian-build-horovod.txt
ARG TORCH_INDEX=
ARG TORCH_LOCK=torch-gloo
ARG HVD_CXX_STD=c++20
ARG HOROVOD_GPU_OPERATIONS=NCCL
# the GPU architectures that Horovod's own kernels serve
ARG HOROVOD_BUILD_CUDA_CC_LIST=80,90,100
# 1: do not take a wheel that an earlier build compiled
ARG NO_CACHE=
RUN --mount=type=bind,from=recipe,target=/recipe \
    --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=cache,target=/root/.cache/pip \
    /recipe/environment.sh horovod

# what docker/image.sh takes out of the build, to compile only once
FROM scratch AS wheels
COPY --from=builder /wheels /

FROM base AS code
COPY . /workspace
RUN chmod -R a+rX,go-w /workspace && install -d -m 1777 /workspace/runs /workspace/run-logs && install -d /workspace/data && \
    ln -s runs /workspace/output-cifar10 && ln -s /workspace/docker/inside/python.sh /usr/local/bin/python

FROM base
COPY --from=builder /opt/venv /opt/venv
COPY --from=code /usr/local/bin/python /usr/local/bin/python
COPY --from=code /workspace /workspace
WORKDIR /workspace
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/workspace PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ARG BASE_IMAGE
ARG BASE_DIGEST=unknown
ARG REVISION=unknown
ARG VERSION=unknown
ARG TORCH_LOCK=torch-gloo
ARG SOURCE_DATE_EPOCH=0
ARG CREATED=1970-01-01T00:00:00Z
RUN python docker/inside/record.py nccl-horovod runtime test horovod "$TORCH_LOCK"
LABEL org.opencontainers.image.title="idist workbench, nccl and Horovod" \
      org.opencontainers.image.description="Distributed PyTorch training on NVIDIA GPUs: torch, nccl, gloo, Horovod, the launchers" \
      org.opencontainers.image.licenses="BSD-3-Clause" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.base.name="$BASE_IMAGE" \
      org.opencontainers.image.base.digest="$BASE_DIGEST"
USER 1000:1000
ENTRYPOINT ["/usr/bin/tini", "--", "/workspace/docker/inside/entrypoint.sh"]
CMD ["help"]

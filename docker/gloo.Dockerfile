# The gloo image: training on CPUs. Built by docker/image.sh gloo, or docker-bake.hcl.
ARG BASE_IMAGE=debian:bookworm-20260824-slim
# An image whose root holds wheels (docker/wheelhouse.sh); none: package indexes are asked
ARG WHEELHOUSE=scratch

FROM ${WHEELHOUSE} AS wheelhouse

FROM scratch AS recipe
COPY docker/env.sh docker/common.sh docker/inside/environment.sh /
COPY docker/locks/runtime.txt docker/locks/test.txt docker/locks/torch-*.txt /locks/

FROM ${BASE_IMAGE} AS base
RUN --mount=type=bind,source=docker/inside/debian.sh,target=/debian.sh \
    --mount=type=bind,source=docker/locks/debian-runtime.txt,target=/debian-runtime.txt \
    /debian.sh /debian-runtime.txt

FROM base AS builder
RUN --mount=type=bind,source=docker/inside/debian.sh,target=/debian.sh \
    --mount=type=bind,source=docker/locks/debian-build.txt,target=/debian-build.txt \
    /debian.sh /debian-build.txt
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG TORCH_LOCK=torch-gloo
RUN --mount=type=bind,from=recipe,target=/recipe \
    --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=cache,target=/root/.cache/pip \
    /recipe/environment.sh gloo

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
RUN python docker/inside/record.py gloo runtime test "$TORCH_LOCK"
LABEL org.opencontainers.image.title="idist workbench, gloo" \
      org.opencontainers.image.description="Distributed PyTorch training on CPUs: torch, gloo, the launchers" \
      org.opencontainers.image.licenses="BSD-3-Clause" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.base.name="$BASE_IMAGE" \
      org.opencontainers.image.base.digest="$BASE_DIGEST"
USER 1000:1000
ENTRYPOINT ["/usr/bin/tini", "--", "/workspace/docker/inside/entrypoint.sh"]
CMD ["help"]

# The environment for a machine with an NVIDIA GPU. `make docker-gpu` builds it and runs it on the checkout.
#
# Torch's packages bring CUDA's libraries and the nvcc package the compiler, all under /opt/venv, so the base
# is the vendor's smallest: it adds the repository that ncu comes from, and the driver's settings.
ARG BASE_IMAGE=nvidia/cuda:13.0.3-base-ubuntu24.04

# torch.compile and Triton compile against Python.h while they run. git tells a result's commit.
FROM ${BASE_IMAGE} AS system
ARG NCU_PACKAGE=cuda-nsight-compute-13-0
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        g++ git make python3 python3-dev tini "$NCU_PACKAGE" \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*'

# Nothing but what the lock has seen, hash by hash.
FROM system AS packages
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-venv
COPY docker/gpu.lock /opt/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python3 -m venv /opt/venv \
    && /opt/venv/bin/python -m pip install --no-cache-dir --require-hashes --requirement /opt/gpu.lock

# What docker/run runs: an edit of the code, or a commit, leaves it and its digest as they are.
FROM system AS environment
COPY --from=packages /opt/venv /opt/venv

# An empty VENV tells make that the packages are there.
ENV PATH=/opt/venv/bin:$PATH PYTHON=/opt/venv/bin/python VENV=

ARG UID=1000
ARG GID=1000
RUN groupadd --non-unique --gid "$GID" runner \
    && useradd --non-unique --no-log-init --create-home --uid "$UID" --gid "$GID" runner \
    && install --directory --owner "$UID" --group "$GID" /workspace
USER $UID:$GID
WORKDIR /workspace

ARG BASE_IMAGE
ARG BASE_DIGEST=unknown
ARG LOCK=unknown
LABEL org.opencontainers.image.title="kernel-pipeline, GPU" \
    org.opencontainers.image.base.name="$BASE_IMAGE" \
    org.opencontainers.image.base.digest="$BASE_DIGEST" \
    kernel-pipeline.lock="$LOCK"
ENTRYPOINT ["tini", "--"]
CMD ["bash"]

# The same with a commit's code in it, for a machine without a checkout.
FROM environment
ARG UID=1000
ARG GID=1000
COPY --chown=$UID:$GID . .
ARG COMMIT=unknown
LABEL org.opencontainers.image.revision="$COMMIT"
CMD ["make", "repro"]

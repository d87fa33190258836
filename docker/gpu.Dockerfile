# The environment for a machine with an NVIDIA GPU. `make docker-gpu` builds it and runs it on the checkout.
#
# Torch's packages bring CUDA's libraries and the nvcc package the compiler, all under /opt/venv, so the base
# is the vendor's smallest: it adds the repository that ncu comes from, and the driver's settings.
# `make pin` moves its digest.
ARG BASE_IMAGE=nvidia/cuda:13.0.3-base-ubuntu24.04@sha256:7c7413a56200486f71f181cad9310f6fd31b6bb21816ade15fc9c1e1e927a5c1

# Folders that pip takes packages from: docker/pip_settings.py names them in place of this.
FROM scratch AS pip-folders

# torch.compile and Triton compile against Python.h while they run. git tells a result's commit.
FROM ${BASE_IMAGE} AS system
ARG NCU_PACKAGE=cuda-nsight-compute-13-0
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        g++ git make python3 python3-dev tini "$NCU_PACKAGE" \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*'

# Nothing but what the locks have seen, hash by hash.
FROM system AS packages
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-venv
COPY locks/install.py locks/build.lock locks/runtime.lock locks/nvcc.lock locks/torch-cuda.lock /opt/locks/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=pip-cert,target=/etc/pip-cert.pem \
    --mount=type=secret,id=pip-client-cert,target=/etc/pip-client-cert.pem \
    --mount=type=bind,from=pip-folders,target=/pip-folders \
    python3 -m venv /opt/venv \
    && /opt/venv/bin/python /opt/locks/install.py runtime nvcc torch-cuda --no-cache-dir

# What is in there, as CycloneDX, listed by a program that stays out of it.
COPY locks/sbom.lock /opt/locks/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=pip-cert,target=/etc/pip-cert.pem \
    --mount=type=secret,id=pip-client-cert,target=/etc/pip-client-cert.pem \
    --mount=type=bind,from=pip-folders,target=/pip-folders \
    python3 -m venv /opt/sbom \
    && /opt/sbom/bin/python /opt/locks/install.py sbom --no-cache-dir \
    && /opt/sbom/bin/cyclonedx-py environment --output-reproducible \
        --output-file /opt/venv/sbom.cdx.json /opt/venv/bin/python

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
    kernel-pipeline.lock="$LOCK" \
    kernel-pipeline.sbom=/opt/venv/sbom.cdx.json
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

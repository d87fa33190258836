# The environment for a machine without a GPU. The public index's torch brings CUDA's libraries; a pip.conf that
# names an index with torch's CPU build takes that one (docs/containers.md). `make pin` moves the base's digest.
ARG BASE_IMAGE=python:3.12.13-slim-bookworm@sha256:4766d8b510c428e595d74b9cc5bbb2fae8e26316fffb4adc89908d79aacd58a2

# Folders that pip takes packages from: docker/pip_settings.py names them in place of this.
FROM scratch AS pip-folders

FROM ${BASE_IMAGE} AS system
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends g++ git make tini \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*'

# Nothing but what the locks have seen, hash by hash.
FROM system AS packages
COPY locks/install.py locks/build.lock locks/runtime.lock locks/nvcc.lock locks/torch-cpu.lock locks/torch-cuda.lock \
    /opt/locks/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=pip-cert,target=/etc/pip-cert.pem \
    --mount=type=secret,id=pip-client-cert,target=/etc/pip-client-cert.pem \
    --mount=type=bind,from=pip-folders,target=/pip-folders \
    python3 -m venv /opt/venv \
    && /opt/venv/bin/python /opt/locks/install.py runtime nvcc torch --no-cache-dir

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
LABEL org.opencontainers.image.title="kernel-pipeline, CPU" \
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

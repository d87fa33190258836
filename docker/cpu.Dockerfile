# The environment for a machine without a GPU. pip's default torch brings CUDA's libraries; a pip.conf that
# names an index with its CPU build takes that one (docs/containers.md).
ARG BASE_IMAGE=python:3.12.13-slim-bookworm

FROM ${BASE_IMAGE} AS system
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends g++ git make tini \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*'

# The dependencies alone, so that the layer with torch outlives every other edit of pyproject.toml.
FROM system AS requirements
COPY pyproject.toml /
RUN python3 -c 'import tomllib; p = tomllib.load(open("/pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *p["optional-dependencies"]["nvcc"], sep="\n")' \
        > /requirements.txt

FROM system AS packages
COPY --from=requirements /requirements.txt /opt/
COPY constraints.txt /opt/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python3 -m venv /opt/venv \
    && /opt/venv/bin/python -m pip install --no-cache-dir \
        --constraint /opt/constraints.txt --requirement /opt/requirements.txt

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

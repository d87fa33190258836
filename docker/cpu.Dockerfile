# The environment for a machine without a GPU: the CUDA compiler comes from PyPI, the rest as in
# gpu.Dockerfile. pip's default torch brings CUDA's libraries; where an index offers its CPU build,
# --build-arg PIP_EXTRA_INDEX_URL=... takes that one.
ARG BASE_IMAGE=python:3.12.13-slim-bookworm

FROM ${BASE_IMAGE} AS system
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends g++ git make tini \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*'

# The dependencies alone, so that the layer with torch outlives every other edit of pyproject.toml.
FROM system AS requirements
COPY pyproject.toml /
RUN python3 -c 'import tomllib; p = tomllib.load(open("/pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *p["optional-dependencies"]["nvcc"], sep="\n")' \
        > /requirements.txt

FROM system
COPY --from=requirements /requirements.txt /opt/
COPY constraints.txt /opt/
ARG PIP_EXTRA_INDEX_URL
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/python -m pip install --no-cache-dir \
        --constraint /opt/constraints.txt --requirement /opt/requirements.txt

# An empty VENV tells make that the packages are there.
ENV PATH=/opt/venv/bin:$PATH PYTHON=/opt/venv/bin/python VENV=

ARG UID=1000
ARG GID=1000
RUN groupadd --non-unique --gid "$GID" runner \
    && useradd --non-unique --no-log-init --create-home --uid "$UID" --gid "$GID" runner \
    && install --directory --owner "$UID" --group "$GID" /workspace
USER $UID:$GID
WORKDIR /workspace
COPY --chown=$UID:$GID . .

ARG COMMIT=unknown
ARG LOCK=unknown
LABEL org.opencontainers.image.title="kernel-pipeline, CPU" \
    org.opencontainers.image.revision="$COMMIT" \
    kernel-pipeline.lock="$LOCK"

ENTRYPOINT ["tini", "--"]
CMD ["make", "repro"]

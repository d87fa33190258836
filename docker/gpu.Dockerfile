# The environment for a machine with an NVIDIA GPU: nvcc and ncu from the base image, Python packages as
# locked in constraints.txt. `make docker-gpu` builds it and runs it on the checkout; without a checkout it
# runs on the copy inside: docker run --gpus all kernel-pipeline:gpu
ARG BASE_IMAGE=nvidia/cuda:13.0.3-devel-ubuntu24.04

# torch.compile and Triton compile against Python.h while they run. git tells a result's commit.
FROM ${BASE_IMAGE} AS system
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        g++ git make python3 python3-dev python3-venv tini \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*'

# The dependencies alone, so that the layer with torch outlives every other edit of pyproject.toml.
FROM system AS requirements
COPY pyproject.toml /
RUN python3 -c 'import tomllib; print(*tomllib.load(open("/pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        > /requirements.txt

FROM system
COPY --from=requirements /requirements.txt /opt/
COPY constraints.txt /opt/
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
LABEL org.opencontainers.image.title="kernel-pipeline, GPU" \
    org.opencontainers.image.revision="$COMMIT" \
    kernel-pipeline.lock="$LOCK"

ENTRYPOINT ["tini", "--"]
CMD ["make", "repro"]

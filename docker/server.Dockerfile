# MLflow's server with PostgreSQL's driver, for docker/compose.yaml. `make pin` moves the base's digest.
ARG BASE_IMAGE=python:3.12.13-slim-bookworm@sha256:4766d8b510c428e595d74b9cc5bbb2fae8e26316fffb4adc89908d79aacd58a2

# Folders that pip takes packages from: docker/pip_settings.py names them in place of this.
FROM scratch AS pip-folders

# Nothing but what the locks have seen, hash by hash.
FROM ${BASE_IMAGE} AS packages
COPY locks/install.py locks/build.lock locks/server.lock /opt/locks/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=pip-cert,target=/etc/pip-cert.pem \
    --mount=type=secret,id=pip-client-cert,target=/etc/pip-client-cert.pem \
    --mount=type=bind,from=pip-folders,target=/pip-folders \
    python3 -m venv /opt/venv \
    && /opt/venv/bin/python /opt/locks/install.py server --no-cache-dir

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

FROM ${BASE_IMAGE}
COPY --from=packages /opt/venv /opt/venv
COPY docker/server-entrypoint /usr/local/bin/
ARG UID=1000
ARG GID=1000
# A volume that is mounted on /artifacts for the first time takes over its owner.
RUN groupadd --gid "$GID" server \
    && useradd --no-log-init --uid "$UID" --gid "$GID" server \
    && install --directory --owner "$UID" --group "$GID" /artifacts
ENV PATH=/opt/venv/bin:$PATH
USER $UID:$GID
WORKDIR /artifacts
EXPOSE 5000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:5000/health', timeout=4)"]

ARG BASE_IMAGE
ARG LOCK=unknown
LABEL org.opencontainers.image.title="kernel-pipeline, MLflow server" \
    org.opencontainers.image.base.name="$BASE_IMAGE" \
    kernel-pipeline.lock="$LOCK" \
    kernel-pipeline.sbom=/opt/venv/sbom.cdx.json
ENTRYPOINT ["server-entrypoint"]

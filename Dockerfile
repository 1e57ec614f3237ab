# Two images from one file: `gateway` (the default) and `demo`, which also holds the demo engines.
#   docker build -t rcp-gateway .
#   docker build -t rcp-gateway:demo --target demo .
# The base of every stage, pinned by the digest of its multi-platform index: a tag can be moved, a digest cannot. To renew
# it: docker buildx imagetools inspect python:3.13-slim-bookworm
ARG PYTHON_IMAGE=python:3.13.9-slim-bookworm@sha256:b685a4fa58bb19d1814d78a1ec0f0208f351452724f78b20212c984d6e124a34

# Wheels of the gateway and of everything that it needs, in the versions of the lock file. All extras that serving can use
# are among them: what is not configured is not imported. Compilers stay in this stage.
FROM ${PYTHON_IMAGE} AS wheels
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN ["apt-get", "update"]
RUN ["apt-get", "install", "--yes", "--no-install-recommends", "gcc", "libc6-dev", "binutils"]
WORKDIR /src
COPY requirements-image.lock ./
# pip compares every file with the hashes in the lock. What the wheel is compiled with (mypyc, and the dependencies with
# their types) is among them.
RUN ["python", "-m", "pip", "wheel", "--require-hashes", "--requirement", "requirements-image.lock", "--wheel-dir", "/wheels"]
RUN ["python", "-m", "pip", "install", "--no-index", "--find-links", "/wheels", "--requirement", "requirements-image.lock"]
COPY pyproject.toml setup.py README.md LICENSE ./
COPY app ./app
ENV RCP_GATEWAY_COMPILE=1
RUN ["python", "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", "/wheels", "."]

# The virtual environments that the images copy whole, without pip.
FROM wheels AS install
RUN ["python", "-m", "venv", "--without-pip", "/opt/rcp-gateway"]
RUN ["python", "-m", "pip", "--python", "/opt/rcp-gateway/bin/python", "install", "--no-index", "--find-links", "/wheels", "rcp-gateway[example,http2,jwt,redis]"]
# Symbols for debuggers are a quarter of what was installed.
RUN ["find", "/opt/rcp-gateway", "-name", "*.so", "-exec", "strip", "--strip-unneeded", "{}", "+"]

FROM install AS install-demo
RUN ["python", "-m", "pip", "--python", "/opt/rcp-gateway/bin/python", "install", "--no-index", "--find-links", "/wheels", "rcp-gateway[demo,example,http2,jwt,redis]"]

# Nothing is written at run time: the bytecode was compiled by pip, so the root file system may be read-only.
# (With --workers above 1 the workers share their metrics in a folder in /tmp, which then needs a tmpfs.)
FROM ${PYTHON_IMAGE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="rcp-gateway" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.description="One Retrieval Context Protocol endpoint in front of many retrieval engines" \
      org.opencontainers.image.licenses="MIT"
ENV PATH=/opt/rcp-gateway/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Mount a folder with rcp.json and, if wanted, gateway.yaml at /srv/config. It listens on every address of its container,
# so it starts only with auth.mode set there, or with RCP_GATEWAY__AUTH__ALLOW_ANONYMOUS=true.
WORKDIR /srv
# A number, so that an orchestrator can see that it is not root.
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8080, timeout=2); c.request('GET', '/livez'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["rcp-gateway"]
CMD ["serve", "--host", "0.0.0.0"]

FROM runtime AS demo
COPY --from=install-demo /opt/rcp-gateway /opt/rcp-gateway

FROM runtime AS gateway
COPY --from=install /opt/rcp-gateway /opt/rcp-gateway

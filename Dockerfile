# Two images from one file: `gateway` (the default) and `demo`, which also holds the demo engines.
#   docker build -t rcp-gateway .
#   docker build -t rcp-gateway:demo --target demo .
ARG PYTHON_VERSION=3.13.9

# The virtual environment is built where pip is and copied whole, without pip; the lock file decides the versions. All extras
# that serving can use are in it: what is not configured is not imported.
FROM python:${PYTHON_VERSION}-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN ["python", "-m", "venv", "--without-pip", "/opt/rcp-gateway"]
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY app ./app
RUN ["python", "-m", "pip", "--python", "/opt/rcp-gateway/bin/python", "install", "--constraint", "requirements.lock", ".[http2,jwt,mcp,redis]"]

# Machine code for the hot rooms. The compilers stay behind: they are outside of what is copied on.
FROM build AS compiled
RUN ["python", "-m", "pip", "install", "--constraint", "requirements.lock", "--target", "/opt/compilers", "mypy", "setuptools"]
ENV PYTHONPATH=/opt/compilers
RUN ["/opt/rcp-gateway/bin/rcp-gateway", "compile"]
# Symbols for debuggers are a quarter of what was installed.
RUN ["find", "/opt/rcp-gateway", "-name", "*.so", "-exec", "strip", "--strip-unneeded", "{}", "+"]

FROM compiled AS build-demo
RUN ["python", "-m", "pip", "--python", "/opt/rcp-gateway/bin/python", "install", "--constraint", "requirements.lock", ".[http2,jwt,mcp,redis,demo]"]

# Nothing is written at run time: the bytecode was compiled by pip, so the root file system may be read-only.
# (With --workers above 1 the workers share their metrics in a folder in /tmp, which then needs a tmpfs.)
FROM python:${PYTHON_VERSION}-slim-bookworm AS runtime
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
COPY --from=build-demo /opt/rcp-gateway /opt/rcp-gateway

FROM runtime AS gateway
COPY --from=compiled /opt/rcp-gateway /opt/rcp-gateway

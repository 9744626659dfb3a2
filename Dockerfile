# syntax=docker/dockerfile:1
# CPU:   docker build --tag dragoman .
# CUDA:  docker build --build-arg DEVICE=cuda --tag dragoman:cuda .
# See docs/deployment.md.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS environment
ARG DEVICE=cpu
RUN python -m venv /opt/dragoman
ENV PATH=/opt/dragoman/bin:$PATH
WORKDIR /source
COPY constraints.txt ./
# A layer of its own: PyTorch is large and changes rarely. The wheels on PyPI contain CUDA.
RUN --mount=type=cache,target=/root/.cache/pip \
    case "$DEVICE" in \
        cpu) set -- --index-url https://download.pytorch.org/whl/cpu ;; \
        cuda) set -- ;; \
        *) echo "DEVICE must be cpu or cuda, not '$DEVICE'" >&2; exit 1 ;; \
    esac \
    && pip install --constraint constraints.txt "$@" torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt '.[serve,sentencepiece,parquet,zstd,media,plots]'

FROM python:${PYTHON_VERSION}-slim
# A C compiler, for the launchers of Triton's kernels on a GPU, and for kernels on a CPU.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home dragoman \
    && install --directory --owner dragoman /data /state
COPY --from=environment /opt/dragoman /opt/dragoman
ENV PATH=/opt/dragoman/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /data
EXPOSE 5000
# A service that has loaded its runs answers on its port; any other command is healthy while it runs.
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import pathlib, urllib.request as web; b'\\0serve\\0' in pathlib.Path('/proc/1/cmdline').read_bytes() and web.urlopen('http://127.0.0.1:5000/readyz', timeout=4)"]
ENTRYPOINT ["dragoman"]
CMD ["--help"]

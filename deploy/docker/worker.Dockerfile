# A vLLM worker with our plugin: vLLM's own image, and this package beside it.
#   GPUs: docker build -f deploy/docker/worker.Dockerfile -t revelator-worker .
#   CPUs: docker build -f deploy/docker/worker.Dockerfile -t revelator-worker-cpu \
#             --build-arg BASE=vllm/vllm-openai-cpu:v0.32.0 .
ARG BASE=vllm/vllm-openai:v0.32.0
FROM ${BASE}
USER root
WORKDIR /src
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY service service
# What the image has keeps its version; a conflict fails the build.
RUN python=$(command -v python3) \
    && uv pip freeze --python "$python" | grep '==' > /tmp/present.txt \
    && uv pip install --python "$python" --break-system-packages --no-cache -c /tmp/present.txt . \
    && rm /tmp/present.txt \
    && useradd --uid 10001 --no-create-home --home-dir /cache revelator \
    && install -d -o revelator -g revelator /cache
# The root may be read-only: models and compiled kernels go to /cache, the rest to /tmp.
ENV HOME=/cache HF_HOME=/cache/huggingface XDG_CACHE_HOME=/cache VLLM_CACHE_ROOT=/cache/vllm \
    TRITON_CACHE_DIR=/cache/triton TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    VLLM_NO_USAGE_STATS=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /cache
VOLUME /cache
EXPOSE 8000
# docker run --gpus all revelator-worker your/instruct-model [options of `vllm serve`]
ENTRYPOINT ["revelator", "worker"]

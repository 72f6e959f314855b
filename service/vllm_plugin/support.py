"""Whether this model and configuration can provide signals, checked at start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def obstacle(config: Any, uses_v2_runner: bool, layer: Any) -> str | None:
    """Return what in a worker's configuration prevents signals, and the remedy; None if nothing
    does.

    `config` is a `VllmConfig`, `layer` the last `Attention` layer (None if there is none).
    """
    return next(_of_setup(config, uses_v2_runner), None) or next(_of_layer(layer), None)


def _of_setup(config: Any, uses_v2_runner: bool) -> Iterator[str]:
    if uses_v2_runner:
        yield "model runner V2 is in use: set VLLM_USE_V2_MODEL_RUNNER=0"
    parallel = config.parallel_config
    for name in ("pipeline", "data", "prefill_context", "decode_context"):
        if getattr(parallel, f"{name}_parallel_size", 1) > 1:
            yield f"{name.replace('_', ' ')} parallelism is not supported: start one server each"
    if config.speculative_config is not None:
        yield "speculative decoding is not supported: start without --speculative-config"
    mode = config.compilation_config.cudagraph_mode
    if mode is not None and "FULL" in mode.name:
        yield (
            "full CUDA graphs hide the attention: start with "
            '--compilation-config \'{"cudagraph_mode": "PIECEWISE"}\''
        )


def _of_layer(layer: Any) -> Iterator[str]:
    if layer is None:
        yield "the model has no attention layer of the usual kind (latent attention, or none)"
        return
    if layer.sliding_window is not None:
        yield f"the last layer attends to a sliding window of {layer.sliding_window} tokens only"
    if layer.attn_type != "decoder":
        yield f"the last layer's attention is of type {layer.attn_type}, not decoder"
    if layer.kv_sharing_target_layer_name is not None:
        yield "the last layer has no attention keys of its own"
    if "fp8" in layer.kv_cache_dtype or "nvfp4" in layer.kv_cache_dtype:
        yield "the cache is quantised: start with --kv-cache-dtype auto"
    softened = getattr(layer.impl, "logits_soft_cap", None)
    if softened:
        yield "the last layer caps its attention's logits"
    if getattr(layer.impl, "alibi_slopes", None) is not None or layer.has_sink:
        yield "the last layer's attention has ALiBi slopes or sinks"

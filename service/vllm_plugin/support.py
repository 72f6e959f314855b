"""Whether this model and configuration can provide signals, checked at start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# What the plugin cannot see, whatever the model; `obstacle` names what of it is met.
UNSEEN = (
    "sliding windows",
    "latent attention",
    "quantised caches (FP8 and others)",
    "capped, ALiBi or sink attention",
    "full CUDA graphs",
    "pipeline, data and context parallelism",
    "speculative decoding",
    "batch-sharded sampling and dual-batch overlap",
)
NOT_RUN = "model runner V2 (its interfaces were tested) and GPUs"
NOT_QUANTISED = ("auto", "float16", "bfloat16", "float32")


def obstacle(config: Any, layer: Mapping[str, Any]) -> str | None:
    """Return what in a worker's configuration prevents signals, and the remedy; None if nothing
    does.

    `config` is a `VllmConfig`, `layer` the arguments of the last layer's `AttentionImpl`.
    """
    return next(_of_setup(config), None) or next(_of_layer(layer), None)


def _of_setup(config: Any) -> Iterator[str]:
    parallel = config.parallel_config
    for name in ("pipeline", "data", "prefill_context", "decode_context"):
        if getattr(parallel, f"{name}_parallel_size", 1) > 1:
            yield f"{name.replace('_', ' ')} parallelism is not supported: start one server each"
    for name in ("enable_batch_sharded_sampling", "enable_dbo"):
        if getattr(parallel, name, False):
            yield f"`{name}` is not supported: start without it"
    if config.speculative_config is not None:
        yield "speculative decoding is not supported: start without --speculative-config"
    mode = config.compilation_config.cudagraph_mode
    if mode is not None and "FULL" in mode.name:
        yield (
            "full CUDA graphs hide the attention: start with "
            '--compilation-config \'{"cudagraph_mode": "PIECEWISE"}\''
        )


def _of_layer(layer: Mapping[str, Any]) -> Iterator[str]:
    if (window := layer.get("sliding_window")) is not None:
        yield f"the last layer attends to a sliding window of {window} tokens only"
    if (kind := layer.get("attn_type", "decoder")) != "decoder":
        yield f"the last layer's attention is of type {kind}, not decoder"
    if layer.get("kv_sharing_target_layer_name") is not None:
        yield "the last layer has no attention keys of its own"
    if layer.get("kv_cache_dtype", "auto") not in NOT_QUANTISED:
        yield "the cache is quantised: start with --kv-cache-dtype auto"
    if layer.get("logits_soft_cap"):
        yield "the last layer caps its attention's logits"
    if layer.get("alibi_slopes") is not None or layer.get("sinks") is not None:
        yield "the last layer's attention has ALiBi slopes or sinks"

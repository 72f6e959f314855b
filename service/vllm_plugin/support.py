"""What the plugin relies on: names of vLLM's source, a model and a configuration that it can read.

Everything that may differ between vLLM's versions is named here, and looked up in the installed
source when vLLM starts. Files are parsed, nothing is imported. The points are the same from 0.29 to
0.33, but for those of model runner V2; layouts of the cache, which do differ, are recognised by
their content (`layouts.LAYOUTS`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

READ = ("0.29", "0.30", "0.31", "0.32", "0.33")  # versions whose source has the points
# What the plugin cannot see, whatever the model; `obstacle` names what of it is met.
UNSEEN = (
    "sliding windows",
    "latent attention",
    "quantised caches (FP8 and others)",
    "capped, ALiBi or sink attention",
    "full CUDA graphs",
    "pipeline, data and context parallelism, workers on other hosts",
    "speculative decoding",
    "batch-sharded sampling and dual-batch overlap",
    "vLLM's Rust front end, which has no --middleware",
)
NOT_RUN = "model runner V2 (its interfaces were tested) and GPUs"
NOT_QUANTISED = ("auto", "float16", "bfloat16", "float32")


class Point(NamedTuple):
    """A class or function at the top of a file below `vllm/`, with these words in it: methods,
    fields, parameters.
    """

    file: str
    name: str
    has: str


# Returns the text of a file below `vllm/`; raises FileNotFoundError or KeyError.
Read = Callable[[str], str]
_BACKEND, _REGISTRY = "v1/attention/backend.py", "v1/attention/backends/registry.py"
_OF_V2 = "v1/worker/gpu/sample/logits_processor/interface.py"
# vLLM's documented interfaces for plugins, and its completions.
DOCUMENTED = (
    Point(_REGISTRY, "register_backend", "backend class_path"),
    Point(_REGISTRY, "AttentionBackendEnum", "is_overridden"),
    Point(_BACKEND, "AttentionBackend", "get_impl_cls get_builder_cls"),
    Point(
        _BACKEND,
        "AttentionImpl",
        "num_heads head_size scale alibi_slopes sliding_window kv_cache_dtype logits_soft_cap "
        "attn_type kv_sharing_target_layer_name forward layer query key value kv_cache",
    ),
    Point(
        _BACKEND,
        "AttentionMetadataBuilder",
        "layer_names vllm_config build common_prefix_len common_attn_metadata",
    ),
    Point("sampling_params.py", "SamplingParams", "extra_args temperature n"),
    Point(
        "entrypoints/openai/completion/protocol.py",
        "CompletionRequest",
        "vllm_xargs return_token_ids cache_salt",
    ),
)
# The interfaces for logits processors of the model runners V1 and V2. One is enough: 0.29 and 0.30,
# which have none for V2, run V1 where a processor is installed.
OF_RUNNERS = (
    (
        Point(
            "v1/sample/logits_processor/__init__.py",
            "AdapterLogitsProcessor",
            "new_req_logits_processor req_info apply update_state",
        ),
    ),
    (
        Point(_OF_V2, "LogitsProcessor", "validate_params add_request apply"),
        Point(_OF_V2, "LogitsContext", "idx_mapping_np"),
    ),
)
# What else the plugin uses; besides, `app.state.engine_client`, which no class declares.
OTHER = (
    Point(
        _BACKEND,
        "CommonAttentionMetadata",
        "query_start_loc_cpu seq_lens_cpu_upper_bound block_table_tensor slot_mapping",
    ),
    Point("model_executor/layers/attention/attention.py", "Attention", "impl"),
    Point("config/compilation.py", "CompilationConfig", "cudagraph_mode static_forward_context"),
    Point("config/parallel.py", "ParallelConfig", "rank tensor_parallel_size"),
    Point("config/vllm.py", "VllmConfig", "parallel_config speculative_config compilation_config"),
    Point("v1/engine/async_llm.py", "AsyncLLM", "get_tokenizer"),
)
POINTS = DOCUMENTED + OTHER


def unsupported() -> str | None:
    """Return why the installed vLLM gives no signals, None if it can."""
    if not (moved := installed_differences()):
        return None
    import vllm  # noqa: PLC0415

    more = f"; and {len(moved) - 3} more" if len(moved) > 3 else ""
    return (
        f"vLLM {vllm.__version__} is not supported by this plugin: {'; '.join(moved[:3])}{more}; "
        f"install one of {', '.join(f'{known}.x' for known in READ)}, or a newer revelator"
    )


@cache
def installed_differences() -> tuple[str, ...]:
    """Return the differences between the installed vLLM and what the plugin needs, in words."""
    found = find_spec("vllm")
    folders = found.submodule_search_locations if found else None
    if not folders:
        return ("vllm is not installed as a package",)
    root = Path(folders[0])
    return tuple(differences(lambda file: (root / file).read_text(encoding="utf-8")))


def differences(read: Read) -> list[str]:
    """Return the differences from what the plugin needs, given a reader of vLLM's files."""
    of_runners = [list(_differences(points, read)) for points in OF_RUNNERS]
    lost = of_runners[-1] if all(of_runners) else []
    return [*_differences(POINTS, read), *lost]


def _differences(points: Iterable[Point], read: Read) -> Iterator[str]:
    for file, name, has in points:
        try:
            source = read(file)
        except (FileNotFoundError, KeyError):
            yield f"vllm/{file} is gone"
            continue
        nodes = (node for node in ast.parse(source).body if getattr(node, "name", None) == name)
        if (node := next(nodes, None)) is None:
            yield f"{name} is not in vllm/{file}"
            continue
        words = re.findall(r"\w+", ast.get_source_segment(source, node) or "")
        if absent := [word for word in has.split() if word not in words]:
            yield f"{name} of vllm/{file} has no {', '.join(absent)}"


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

"""The parts of vLLM that the plugin relies on, checked against the installed source.

Everything that may differ between vLLM's versions is named here. Files are parsed, nothing is
imported. The points are the same from 0.29 to 0.33, but for those of model runner V2; layouts of
the cache, which do differ, are recognised by their content (`layouts.LAYOUTS`).

    python -m service.vllm_plugin.versions FOLDER_OR_WHEEL

prints the points that a vLLM lacks: of a folder that contains `vllm/`, or of a wheel.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

READ = ("0.29", "0.30", "0.31", "0.32", "0.33")  # versions whose source has the points
Read = Callable[
    [str], str
]  # returns the text of a file below `vllm/`; raises FileNotFoundError or KeyError


class Point(NamedTuple):
    """A class or function at the top of a file below `vllm/`, with these words in it: methods,
    fields, parameters.
    """

    file: str
    name: str
    has: tuple[str, ...]


_ATTENTION, _REGISTRY = "v1/attention/backend.py", "v1/attention/backends/registry.py"
_V1, _V2 = "v1/sample/logits_processor", "v1/worker/gpu/sample/logits_processor"
# vLLM's documented interfaces for plugins, and its client for requests.
DOCUMENTED = (
    Point(_REGISTRY, "register_backend", ("backend", "class_path")),
    Point(_REGISTRY, "AttentionBackendEnum", ("is_overridden",)),
    Point(_ATTENTION, "AttentionBackend", ("get_impl_cls", "get_builder_cls")),
    Point(
        _ATTENTION,
        "AttentionImpl",
        (
            "num_heads", "head_size", "scale", "alibi_slopes", "sliding_window", "kv_cache_dtype",
            "logits_soft_cap", "attn_type", "kv_sharing_target_layer_name", "forward", "layer",
            "query", "key", "value", "kv_cache",
        ),
    ),
    Point(
        _ATTENTION,
        "AttentionMetadataBuilder",
        ("layer_names", "vllm_config", "build", "common_prefix_len", "common_attn_metadata"),
    ),
    Point("engine/protocol.py", "EngineClient", ("generate", "collective_rpc", "lora_request")),
    Point("sampling_params.py", "SamplingParams", ("extra_args", "skip_reading_prefix_cache")),
    Point("sampling_params.py", "RequestOutputKind", ("DELTA",)),
    Point(
        "plugins/endpoint_plugins/interface.py", "EndpointPlugin", ("attach_router", "init_state")
    ),
    Point("config/parallel.py", "ParallelConfig", ("worker_extension_cls",)),
)  # fmt: skip
# The interfaces for logits processors of the model runners V1 and V2. One is enough: 0.29 and 0.30,
# which have none for V2, run V1 where a processor is installed.
OF_RUNNERS = (
    (
        Point(
            f"{_V1}/interface.py",
            "LogitsProcessor",
            ("validate_params", "apply", "is_argmax_invariant", "update_state"),
        ),
        Point(f"{_V1}/builtin.py", "process_dict_updates", ("batch_update", "new_state")),
    ),
    (
        Point(
            f"{_V2}/interface.py", "LogitsProcessor", ("validate_params", "add_request", "apply")
        ),
        Point(f"{_V2}/interface.py", "LogitsContext", ("idx_mapping_np",)),
    ),
)
# What else the plugin uses.
OTHER = (
    Point(
        _ATTENTION,
        "CommonAttentionMetadata",
        ("query_start_loc_cpu", "seq_lens_cpu_upper_bound", "block_table_tensor", "slot_mapping"),
    ),
    Point("model_executor/layers/attention/attention.py", "Attention", ("impl",)),
    Point(
        "config/compilation.py", "CompilationConfig", ("cudagraph_mode", "static_forward_context")
    ),
    Point(
        "config/vllm.py",
        "VllmConfig",
        ("parallel_config", "speculative_config", "compilation_config"),
    ),
    Point(
        "entrypoints/openai/models/serving.py",
        "OpenAIServingModels",
        ("is_base_model", "lora_requests"),
    ),
)
POINTS = DOCUMENTED + OTHER


def is_read(version: str) -> bool:
    """Whether the source of this version was read."""
    return ".".join(version.split(".")[:2]) in READ


def unsupported(version: str, differences: Sequence[str]) -> str | None:
    """Return why a vLLM of this version, in which these points differ, gives no signals, or
    None.
    """
    if not differences:
        return None
    named = "; ".join(differences[:3]) + (
        f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
    )
    return (
        f"vLLM {version} is not supported by this plugin: {named}; install one of "
        f"{', '.join(f'{known}.x' for known in READ)}, or a newer revelator"
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
    """Return the differences from what the plugin needs, in words, given a reader of vLLM's
    files.
    """
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
        if absent := [each for each in has if each not in words]:
            yield f"{name} of vllm/{file} has no {', '.join(absent)}"


def reader(place: Path) -> Read:
    """Return a reader of vLLM's files in a folder that contains `vllm/`, or in a wheel."""
    if place.is_dir():
        return lambda file: (place / "vllm" / file).read_text(encoding="utf-8")
    wheel = zipfile.ZipFile(place)
    return lambda file: wheel.read(f"vllm/{file}").decode("utf-8")


def main() -> int:
    problems = differences(reader(Path(sys.argv[1])))
    for problem in problems or ["every point is as the plugin needs it"]:
        print(problem)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())

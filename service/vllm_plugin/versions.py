"""The parts of vLLM that the plugin relies on, checked against the installed source.

Everything that may differ between vLLM's versions is named here. Files are parsed, nothing is
imported. The points are the same from 0.29 to 0.33; layouts of the cache, which do differ, are
recognised by their content (`hooks.LAYOUTS`).

    python -m service.vllm_plugin.versions FOLDER_OR_WHEEL

prints the points that a vLLM lacks: of a folder that contains `vllm/`, or of a wheel.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

READ = (
    "0.29",
    "0.30",
    "0.31",
    "0.32",
    "0.33",
)  # versions whose source has every point; 0.29 to 0.32 were run
Read = Callable[
    [str], str
]  # returns the text of a file below `vllm/`; raises FileNotFoundError or KeyError


class Point(NamedTuple):
    """A function with these first parameters, or a class with these fields, methods or attributes
    of its own.
    """

    file: str
    name: str
    has: tuple[str, ...]


_RUNNER, _SCHEDULE = "v1/worker/gpu_model_runner.py", "v1/core/sched/output.py"
_FORWARD = ("self", "layer", "query", "key", "value", "kv_cache", "attn_metadata")
_BACKENDS = "v1/attention/backends"
POINTS = (
    Point(_RUNNER, "GPUModelRunner.execute_model", ("self", "scheduler_output")),
    Point(
        _RUNNER,
        "GPUModelRunner",
        ("model", "input_batch", "query_start_loc", "execute_model_state", "lora_config"),
    ),
    Point(_RUNNER, "ExecuteModelState", ("hidden_states",)),
    Point(
        _SCHEDULE,
        "SchedulerOutput",
        ("scheduled_new_reqs", "finished_req_ids", "num_scheduled_tokens"),
    ),
    Point(_SCHEDULE, "NewRequestData", ("req_id", "prompt_token_ids", "sampling_params")),
    Point("v1/worker/gpu_input_batch.py", "InputBatch", ("req_ids", "num_computed_tokens_cpu")),
    Point(
        "v1/worker/lora_model_runner_mixin.py",
        "LoRAModelRunnerMixin.set_active_loras",
        ("self", "input_batch", "num_scheduled_tokens", "num_sampled_tokens"),
    ),
    Point("v1/worker/gpu_worker.py", "Worker", ("use_v2_model_runner", "model_runner")),
    Point(
        "model_executor/layers/attention/attention.py",
        "Attention",
        (
            "impl", "num_heads", "head_size", "sliding_window", "attn_type", "has_sink",
            "kv_sharing_target_layer_name", "kv_cache_dtype",
        ),
    ),
    Point("model_executor/models/utils.py", "extract_layer_index", ("layer_name",)),
    Point(f"{_BACKENDS}/cpu_attn.py", "CPUAttentionBackendImpl.forward", _FORWARD),
    Point(f"{_BACKENDS}/cpu_attn.py", "CPUAttentionMetadata", ("slot_mapping", "block_table")),
    Point(f"{_BACKENDS}/flash_attn.py", "FlashAttentionImpl.forward", _FORWARD),
    Point(f"{_BACKENDS}/flash_attn.py", "FlashAttentionMetadata", ("slot_mapping", "block_table")),
    Point(
        "engine/protocol.py",
        "EngineClient.generate",
        ("self", "prompt", "sampling_params", "request_id"),
    ),
    Point("engine/protocol.py", "EngineClient.collective_rpc", ("self", "method")),
    Point("sampling_params.py", "SamplingParams", ("extra_args", "skip_reading_prefix_cache")),
    Point("sampling_params.py", "RequestOutputKind", ("DELTA",)),
    Point(
        "plugins/endpoint_plugins/interface.py", "EndpointPlugin", ("attach_router", "init_state")
    ),
    Point(
        "entrypoints/openai/models/serving.py",
        "OpenAIServingModels",
        ("is_base_model", "lora_requests"),
    ),
    Point("config/parallel.py", "ParallelConfig", ("worker_extension_cls",)),
    Point(
        "config/compilation.py", "CompilationConfig", ("cudagraph_mode", "static_forward_context")
    ),
)  # fmt: skip


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


def differences(read: Read) -> Iterator[str]:
    """Yield the differences from what the plugin needs, in words, given a reader of vLLM's
    files.
    """
    for point in POINTS:
        try:
            tree = ast.parse(read(point.file))
        except (FileNotFoundError, KeyError):
            yield f"vllm/{point.file} is gone"
            continue
        node = _find(tree, point.name)
        if node is None:
            yield f"{point.name} is not in vllm/{point.file}"
        elif isinstance(node, ast.ClassDef):
            if absent := [name for name in point.has if name not in _members(node)]:
                yield f"{point.name} of vllm/{point.file} has no {', '.join(absent)}"
        elif _parameters(node)[: len(point.has)] != list(point.has):
            wanted = ", ".join(point.has)
            yield f"{point.name} of vllm/{point.file} does not begin with ({wanted})"


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _find(tree: ast.Module, name: str) -> ast.ClassDef | _Function | None:
    body: Sequence[ast.stmt] = tree.body
    found: ast.ClassDef | _Function | None = None
    for part in name.split("."):
        found = next(
            (
                each
                for each in body
                if isinstance(each, ast.ClassDef | _Function) and each.name == part
            ),
            None,
        )
        if found is None:
            return None
        body = found.body
    return found


def _parameters(node: _Function) -> list[str]:
    return [each.arg for each in (*node.args.posonlyargs, *node.args.args)]


def _members(node: ast.ClassDef) -> set[str]:
    """Return fields, methods, and attributes that methods set on `self`."""
    found: set[str] = set()
    for each in node.body:
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found |= {name, *_set_on_self(each)}
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
    return found


def _set_on_self(method: ast.AST) -> set[str]:
    return {
        each.attr
        for each in ast.walk(method)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def reader(place: Path) -> Read:
    """Return a reader of vLLM's files in a folder that contains `vllm/`, or in a wheel."""
    if place.is_dir():
        return lambda file: (place / "vllm" / file).read_text(encoding="utf-8")
    wheel = zipfile.ZipFile(place)
    return lambda file: wheel.read(f"vllm/{file}").decode("utf-8")


def main() -> int:
    problems = list(differences(reader(Path(sys.argv[1]))))
    for problem in problems:
        print(problem)
    print(f"{len(POINTS) - len(problems)} of {len(POINTS)} points are as the plugin needs them")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())

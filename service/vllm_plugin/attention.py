"""vLLM's attention backends, registered again as subclasses that show the last layer to the tap.

Which backend runs is vLLM's choice; each is extended in the same way. A subclass only takes note of
how it was made. The methods of the last layer are replaced while a request with signals is tracked;
at all other times vLLM runs its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import signature
from pkgutil import resolve_name
from typing import Any

from service.vllm_plugin.support import installed_differences, obstacle
from service.vllm_plugin.tap import TAP, Tap

EXTENDED = ("CPU_ATTN", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")


def register() -> None:
    """Put the subclasses in the place of vLLM's backends, where no other plugin has done so.

    The entry point of `vllm.general_plugins`, which vLLM calls in every process.
    """
    if installed_differences():
        return  # `unsupported` says which, to who asks
    from vllm.v1.attention.backends.registry import (  # noqa: PLC0415
        AttentionBackendEnum,
        register_backend,
    )

    for name in EXTENDED:
        member = AttentionBackendEnum.__members__.get(name)
        if member is not None and not member.is_overridden():
            register_backend(member, f"{__name__}.{name}")


@cache
def __getattr__(name: str) -> type:
    """Return the subclass of a backend, by the name under which it is registered."""
    if name not in EXTENDED:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: PLC0415

    return extended(name, resolve_name(AttentionBackendEnum[name].value))


def extended(name: str, backend: Any, tap: Tap = TAP) -> type:
    implementation, builder = backend.get_impl_cls(), backend.get_builder_cls()
    extension = type(
        f"{name}_IMPL", (implementation,), {"__init__": _noting_arguments(implementation)}
    )
    build = type(f"{name}_BUILDER", (builder,), {"__init__": _attaching(builder, tap)})
    methods = {
        "get_impl_cls": staticmethod(lambda: extension),
        "get_builder_cls": staticmethod(lambda: build),
    }
    return type(name, (backend,), {"__module__": __name__, **methods})


def _noting_arguments(implementation: Any) -> Callable[..., None]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        implementation.__init__(self, *args, **kwargs)
        bound = signature(implementation.__init__).bind(self, *args, **kwargs)
        self.arguments = bound.arguments

    return init


def _attaching(builder: Any, tap: Tap) -> Callable[..., None]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        builder.__init__(self, *args, **kwargs)
        tap.safely(_attach, self, tap)

    return init


def _attach(builder: Any, tap: Tap) -> None:
    """Show the model's last layer to the tap, if it is one of this builder's."""
    config = builder.vllm_config
    layers = config.compilation_config.static_forward_context
    last = max(map(_number, layers))
    for name in builder.layer_names:
        if _number(name) == last:
            implementation = layers[name].impl
            parallel = config.parallel_config
            rank = (parallel.rank % parallel.tensor_parallel_size, parallel.tensor_parallel_size)
            arguments = implementation.arguments
            watch = _watch(tap, builder, implementation)
            tap.attach(arguments, obstacle(config, arguments), rank, watch)


def _watch(tap: Tap, builder: Any, implementation: Any) -> Callable[[bool], None]:
    """Return a function that begins and ends to show batches and the layer to the tap."""
    build, forward = builder.build, implementation.forward

    def show_batch(
        common_prefix_len: int, common_attn_metadata: Any, *args: Any, **more: Any
    ) -> Any:
        tap.see_batch(common_attn_metadata)
        return build(common_prefix_len, common_attn_metadata, *args, **more)

    def show_layer(
        layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, *args: Any, **more: Any
    ) -> Any:
        output = forward(layer, query, key, value, kv_cache, *args, **more)
        tap.see_layer(query, key, kv_cache)
        return output

    def watch(on: bool) -> None:
        if on:
            builder.build, implementation.forward = show_batch, show_layer
        else:
            vars(builder).pop("build", None)
            vars(implementation).pop("forward", None)

    return watch


def _number(name: str) -> int:
    """Return the number in a layer's name, as `model.layers.11.self_attn.attn`; -1 without one."""
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)

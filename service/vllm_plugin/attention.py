"""vLLM's attention backends, registered again as subclasses that show the last layer to the tap.

Which backend runs is vLLM's choice; each is extended in the same way. Of all layers' classes only
the last layer's does more than its own work, and only while a request with signals is tracked.
"""

from __future__ import annotations

from functools import cache
from inspect import signature
from pkgutil import resolve_name
from typing import Any

from service.vllm_plugin.support import obstacle
from service.vllm_plugin.tap import TAP, Tap

EXTENDED = ("CPU_ATTN", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")


def register() -> None:
    """Put the subclasses in the place of vLLM's backends, where no other plugin has done so."""
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


def extended(name: str, backend: Any) -> type:
    implementation, builder = backend.get_impl_cls(), backend.get_builder_cls()
    own = type(f"{name}_IMPL", (ExtendedImplementation, implementation), {})
    build = type(f"{name}_BUILDER", (ExtendedBuilder, builder), {})
    methods = {
        "get_impl_cls": staticmethod(lambda: own),
        "get_builder_cls": staticmethod(lambda: build),
    }
    return type(name, (backend,), {"__module__": __name__, **methods})


class ExtendedImplementation:
    """Before an `AttentionImpl`, whose result it leaves as it is; the last layer has a `tap`."""

    tap: Tap | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        bound = signature(super().__init__).bind(*args, **kwargs)
        self.arguments: dict[str, Any] = bound.arguments

    def forward(
        self, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, *args: Any, **kwargs: Any
    ) -> Any:
        output = super().forward(layer, query, key, value, kv_cache, *args, **kwargs)  # type: ignore[misc]
        if self.tap is not None and self.tap.calls:
            self.tap.see_layer(query, key, kv_cache)
        return output


class ExtendedBuilder:
    """Before an `AttentionMetadataBuilder`; that of the last layer shows the tap each batch."""

    tap = TAP
    layer_names: list[str]
    vllm_config: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_last = self.tap.safely(self._attach)

    def _attach(self) -> bool:
        layers = self.vllm_config.compilation_config.static_forward_context
        last = max(map(_number, layers))
        for name in self.layer_names:
            if _number(name) == last:
                own = layers[name].impl
                self.tap.attach(own.arguments, obstacle(self.vllm_config, own.arguments))
                own.tap = self.tap
                return True
        return False

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **more: Any
    ) -> Any:
        if self._is_last and self.tap.calls:
            self.tap.see_batch(common_attn_metadata)
        return super().build(common_prefix_len, common_attn_metadata, *args, **more)  # type: ignore[misc]


def _number(name: str) -> int:
    """Return the number in a layer's name, as `model.layers.11.self_attn.attn`; -1 without one."""
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)

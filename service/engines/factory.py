"""Opens the engine that the settings name. Nothing heavy is imported before it is needed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from service.core.errors import ConfigurationError
from service.core.metrics import Metrics
from service.core.settings import EngineSettings
from service.engines.base import Generator

if TYPE_CHECKING:
    from service.engines.vllm import VllmGenerator


def open_generator(
    name: str, settings: EngineSettings, metrics: Metrics | None = None
) -> Generator:
    """Create the engine `name`. It connects or loads at its first call or `check`.

    A pool reports its workers to `metrics`, and a client of a server reports repeated calls.

    Raises ConfigurationError if the settings cannot work with any server.
    """
    if settings.kind == "local":
        from service.engines.local import LocalGenerator  # noqa: PLC0415

        return LocalGenerator(name, settings)
    if settings.kind == "embedded":
        from service.engines.embedded import EmbeddedGenerator  # noqa: PLC0415

        return EmbeddedGenerator(name, settings)
    if not settings.urls:
        raise ConfigurationError(
            f"engines.{name}: kind {settings.kind!r} needs urls, the base URLs of its servers"
        )
    metrics = metrics or Metrics()
    resent = partial(metrics.count, "resent_calls_total")
    if settings.kind == "openai":
        from service.engines.openai import OpenAIGenerator  # noqa: PLC0415

        return OpenAIGenerator(name, settings, resent)
    from service.engines.pool import PoolGenerator  # noqa: PLC0415
    from service.engines.vllm import VllmGenerator  # noqa: PLC0415

    def connect(url: str) -> VllmGenerator:
        of_worker = settings.model_copy(update={"urls": [url]})
        return VllmGenerator(name, of_worker, resent)

    return PoolGenerator(name, settings, connect, metrics)

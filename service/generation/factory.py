"""From the settings of one engine to the engine; nothing heavy is imported before it is needed."""

from __future__ import annotations

from service.errors import ConfigurationError
from service.generation.base import Generator
from service.generation.pool.report import UNOBSERVED, PoolObserver
from service.settings import EngineSettings


def open_generator(
    name: str, settings: EngineSettings, observer: PoolObserver = UNOBSERVED
) -> Generator:
    """Make the engine `name`. It connects or loads at its first call or `check`.

    A pool tells `observer` of its workers, a server's client of calls sent once more.

    Raises ConfigurationError when the settings cannot work whatever the server says.
    """
    if settings.kind == "local":
        from service.generation.local import LocalGenerator  # noqa: PLC0415

        return LocalGenerator(name, settings)
    if settings.kind == "embedded":
        from service.generation.embedded import EmbeddedGenerator  # noqa: PLC0415

        return EmbeddedGenerator(name, settings)
    if not settings.urls:
        raise ConfigurationError(
            f"engines.{name}: kind {settings.kind!r} needs urls, the base URLs of its servers"
        )
    from service.generation.openai import OpenAIGenerator  # noqa: PLC0415

    if settings.kind == "openai":
        return OpenAIGenerator(name, settings, observer.call_resent)
    from service.generation.pool.pool import PoolGenerator  # noqa: PLC0415
    from service.generation.vllm import VllmGenerator  # noqa: PLC0415

    def connect(url: str) -> Generator:
        own = settings.model_copy(update={"urls": [url]})
        return VllmGenerator(name, own, observer.call_resent)

    return PoolGenerator(name, settings, connect, observer)

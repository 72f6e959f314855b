"""Requests the health and the models of one worker, on separate connections."""

from __future__ import annotations

from typing import Any

import aiohttp
import orjson
from yarl import URL

from service.core.connections import open_session, reason_of
from service.core.errors import EngineFailure, EngineUnreached
from service.core.settings import EngineSettings
from service.core.settings.urls import authorization
from service.engines.openai_wire import read_into
from service.engines.pool.member import Profile

MOST_BYTES = 1_000_000


class Probe:
    """Requests `/health`, `/v1/models`, `/version`, and `/v1/revelator/info` of Revelator's plugin.

    Only vLLM has all four. A 404 of another server means that it does not have this endpoint.
    """

    def __init__(self, settings: EngineSettings, limit_s: float) -> None:
        self._limit_s = limit_s
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def health(self, base: URL) -> None:
        """Raise EngineUnreached if the connection is not accepted, EngineFailure if the worker is
        unhealthy."""
        status, content = await self._get(base.with_path("/health"))
        if status >= 500:
            raise EngineFailure(f"/health answered {status}: {content[:200]!r}")

    async def profile(self, base: URL) -> Profile:
        """Return what the worker serves. Raises EngineFailure with the cause."""
        models, context = _models(await self._json(base / "models"))
        version = await self._json(base.with_path("/version"), optional=True)
        info = await self._json(base / "revelator" / "info", optional=True)
        return Profile(
            models,
            version.get("version"),
            context,
            bool(info.get("signals")),
            info.get("reason"),
        )

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _json(self, url: URL, *, optional: bool = False) -> dict[str, Any]:
        status, body = await self._get(url)
        if optional and status != 200:
            return {}
        if status in (401, 403):
            raise EngineFailure(f"rejected the key ({status}); check engines.*.key")
        if status != 200:
            raise EngineFailure(f"{url.path} answered {status}; engines.*.urls must end with /v1")
        if len(body) > MOST_BYTES:
            raise EngineFailure(
                f"{url.path} returned more than {MOST_BYTES:,} bytes; check that it is an "
                "OpenAI-compatible server"
            )
        try:
            content = orjson.loads(body)
        except orjson.JSONDecodeError:
            content = None
        if not isinstance(content, dict):
            raise EngineFailure(
                f"{url.path} did not return JSON; check that it is an OpenAI-compatible server"
            )
        return content

    async def _get(self, url: URL) -> tuple[int, bytes]:
        """Return the status and the body. What follows after `MOST_BYTES` is not read."""
        body = bytearray()
        try:
            async with self._connected().get(url, allow_redirects=False) as response:
                await read_into(body, response.content.readany, MOST_BYTES)
                return response.status, bytes(body)
        except TimeoutError:
            raise EngineFailure(f"no response to a probe within {self._limit_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise EngineUnreached(
                f"the server did not accept the connection ({reason_of(error)})"
            ) from None
        except UnicodeError:  # from the look-up of the name
            raise EngineFailure(
                f"{url.host} is not a valid host name; check engines.*.urls"
            ) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise EngineFailure(
                f"the response is not valid HTTP ({type(error).__name__})"
            ) from None

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(
                headers=authorization("", self._settings.key),
                total_s=self._limit_s,
                connect_s=self._limit_s,
                ca_files=self._settings.ca_files,
                ca_setting="engines.*.ca_files",
                limit=0,
                keep=False,
            )
        return self._session


def _models(content: dict[str, Any]) -> tuple[tuple[str, ...], int | None]:
    """Return the model names, including LoRA adapters, and the shortest context length if
    reported.
    """
    try:
        names = tuple(str(row["id"]) for row in content["data"])
        contexts = [
            int(row["max_model_len"]) for row in content["data"] if row.get("max_model_len")
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise EngineFailure("/models did not return a list of models") from None
    if not names:
        raise EngineFailure("/models lists no model")
    return names, min(contexts, default=None)

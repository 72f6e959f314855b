"""The entry points: `vllm.general_plugins` (every process) and `vllm.endpoint_plugins` (routes)."""

from __future__ import annotations

import asyncio
import logging
from argparse import Namespace
from typing import Any

from service.engines.encoding import PromptEncoder
from service.engines.signals import ScoreRequest
from service.vllm_plugin import EXTENSION, NAME, attention
from service.vllm_plugin.backend import VllmBackend
from service.vllm_plugin.calls import Calls
from service.vllm_plugin.collector import SignalsLost
from service.vllm_plugin.routes import PluginState, install
from service.vllm_plugin.versions import installed_differences, is_read, unsupported

log = logging.getLogger(f"vllm.{NAME}")  # vLLM configures the loggers below its own name


def register() -> None:
    """Extend the attention backends in every process, where vLLM is as the plugin needs it."""
    import vllm  # noqa: PLC0415

    if installed_differences():
        return  # the API server says which
    attention.register()
    if not is_read(vllm.__version__):
        log.warning(
            "vLLM %s has not been tested with this plugin; its source is checked for the names "
            "that the plugin needs",
            vllm.__version__,
        )


class SignalsPlugin:
    """Adds the routes, and checks at start whether the workers can provide signals."""

    name = NAME
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        import vllm  # noqa: PLC0415

        install(app, PluginState(vllm.__version__))

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        own: PluginState = state.revelator
        try:
            own.calls, own.ranks = await _start(engine_client, state, args)
            own.reason = None
        except Unable as error:
            own.calls, own.reason = None, str(error)
        if own.reason:
            log.error("no token signals: %s", own.reason)
        else:
            log.info("token signals are served at /v1/%s", NAME)


class Unable(Exception):
    """Signals are not available; the text gives the reason and the remedy."""


async def _start(engine: Any, state: Any, args: Namespace) -> tuple[Calls, int]:
    """Test the signals of the workers once. Raises Unable."""
    if engine is None:
        raise Unable("the server has no engine")
    if problem := unsupported(state.revelator.vllm, await asyncio.to_thread(installed_differences)):
        raise Unable(problem)
    if getattr(args, "worker_extension_cls", None) != EXTENSION:
        raise Unable(f"start vLLM with --worker-extension-cls {EXTENSION}")
    if (getattr(args, "api_server_count", None) or 1) > 1:
        raise Unable("start one API server per worker: --api-server-count 1")
    tokenizer = engine.get_tokenizer()
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise Unable(
            f"the tokenizer {type(tokenizer).__name__} is not a fast tokenizer of transformers"
        )
    backend = VllmBackend(engine, state.openai_serving_models)
    started = await backend.rpc("revelator_start")
    for side in started:
        if side["obstacle"]:
            raise Unable(side["obstacle"])
    heads = max(side["heads"] for side in started)
    calls = Calls(backend, PromptEncoder(tokenizer), heads=heads)
    await _try(calls)
    return calls, len(started)


async def _try(calls: Calls) -> None:
    """Score a few tokens, so that the tap sees their rows and determines the cache's layout."""
    try:
        await calls.score(ScoreRequest(token_ids=(0, 1, 2, 3), row_spans=()))
    except SignalsLost as error:
        raise Unable(str(error)) from None

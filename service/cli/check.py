"""`revelator check` shows what is configured, what is reachable and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final

import anyio
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.checks import Check, check_all, describe_roles
from service.client import Client
from service.core.errors import EngineFailure, RevelatorError
from service.core.locks import find_owner
from service.core.settings import Settings
from service.engines.pool import PoolGenerator
from service.engines.workers import Worker
from service.retrieval.collections.backends import open_backends
from service.runtime import open_engines, open_roles, open_runtime

SERVER_S: Final = 10.0  # time limit for asking the server
TRANSPORT_S: Final = 5.0  # time limit for finding out which transport reaches Qdrant
NOT_SERVING: Final = (
    "the process that holds the data directory is not serving HTTP: a server is still starting, or "
    "a command such as ingest is running; wait and run the check again"
)


async def check_in_terminal(settings: Settings) -> int:
    """Print the checks as a table, and return the exit code: 0 if all are ok, else 1."""
    owner = find_owner(settings.data_dir)
    checks = [Check("data directory", True, str(settings.data_dir))]
    async with AsyncExitStack() as stack:
        if owner is not None:
            served = owner.url or "no URL"
            holder = f"process {owner.pid} holds the data directory and serves {served}"
            checks.append(Check("server", True, holder))
            checks += await _ask_server(owner.url, settings)
            engines = await stack.enter_async_context(open_engines(settings))
            roles = open_roles(settings, engines)
        else:
            runtime = await stack.enter_async_context(open_runtime(settings))
            checks += await check_all(runtime)
            engines, roles = runtime.engines, runtime.roles
        checks += describe_roles(settings, roles)
        checks += await _transport(settings)
        pools = {
            name: await _workers(engine)
            for name, engine in engines.items()
            if isinstance(engine, PoolGenerator)
        }
    table = Table("", "check", "detail", box=None)
    for check in checks:
        mark = "[green]ok[/]" if check.ok else "[red]failed[/]"
        table.add_row(mark, check.name, escape(check.detail))
    console = Console()
    console.print(table)
    for name, workers in pools.items():
        console.print()
        console.print(_pool_table(name, workers))
    return 0 if all(check.ok for check in checks) else 1


async def _transport(settings: Settings) -> list[Check]:
    """Find out which transport this process uses for Qdrant."""
    backends = open_backends(settings.retrieval)
    try:
        with anyio.fail_after(TRANSPORT_S):
            transport = await backends.transport()
    except TimeoutError:
        return [Check("qdrant", False, f"no response within {TRANSPORT_S:.0f} s")]
    except RevelatorError as error:
        return [Check("qdrant", False, error.detail)]
    finally:
        await backends.aclose()
    return [Check("qdrant", True, f"{transport[0]}: {transport[1]}")] if transport else []


async def _workers(pool: PoolGenerator) -> list[Worker]:
    """Return the workers of a pool after one check of each."""
    with suppress(EngineFailure):  # the first table shows the failure
        await pool.check()
    return pool.workers()


def _pool_table(name: str, workers: Sequence[Worker]) -> Table:
    table = Table(f"engine {name}", "state", "vLLM", "signals", "models", "", box=None)
    for worker in workers:
        colour = "green" if worker.phase == "up" else "red"
        table.add_row(
            worker.name,
            f"[{colour}]{worker.phase}[/]",
            worker.profile.version or "?",
            "yes" if worker.profile.signals else "no",
            escape(", ".join(worker.profile.models)),
            escape(worker.trouble or ""),
        )
    versions = {worker.profile.version for worker in workers if worker.profile.version}
    if len(versions) > 1:
        table.caption = f"versions differ: {', '.join(sorted(versions))}"
    return table


async def _ask_server(url: str | None, settings: Settings) -> list[Check]:
    if url is None:
        return [Check("readiness", False, NOT_SERVING)]
    try:
        with anyio.fail_after(SERVER_S):
            async with Client(url, key=settings.own_key, patience_s=0) as client:
                degraded = await client.degraded()
    except (RevelatorError, TimeoutError) as error:
        return [Check("readiness", False, f"{url}: {error or 'no response'}")]
    return [
        Check("readiness", True, url),
        *(Check("readiness", False, reason) for reason in degraded),
    ]

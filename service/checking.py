"""`revelator check`: what is configured, reachable, missing."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.locking import find_owner
from service.runtime import Check, open_runtime
from service.settings import Settings


async def check_in_terminal(settings: Settings) -> int:
    """Print a table; the exit code: 0 when all is well, 1 when something is missing."""
    owner = find_owner(settings.data_dir)
    checks = [Check("data directory", True, str(settings.data_dir))]
    if owner is not None:
        checks.append(Check("server", True, f"pid {owner.pid} serves it at {owner.url or '?'}"))
        checks += await _ask_server(owner.url)
    else:
        async with open_runtime(settings) as runtime:
            checks += await runtime.checks()
    roles = settings.roles
    for name, role in (("revelator", roles.revelator), ("reader", roles.reader)):
        model = role.adapter or role.model or "the engine's own"
        checks.append(
            Check(f"role {name}", True, f"engine {role.engine}, {model}, {role.templates} prompts")
        )
    table = Table("", "what", "state", box=None)
    for check in checks:
        mark = "[green]ok[/]" if check.ok else "[red]no[/]"
        table.add_row(mark, check.name, escape(check.detail))
    Console().print(table)
    return 0 if all(check.ok for check in checks) else 1


async def _ask_server(url: str | None) -> list[Check]:
    import aiohttp  # noqa: PLC0415

    if url is None:
        return [Check("readiness", False, "the server has not said its URL yet")]
    try:
        timeout = aiohttp.ClientTimeout(total=10)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/readyz") as response,
        ):
            text = await response.text()
            return [Check("readiness", response.status == 200, text[:500])]
    except (aiohttp.ClientError, TimeoutError) as error:
        return [Check("readiness", False, f"{url} does not answer: {error}")]

"""What the tests do on the page."""

from __future__ import annotations

from typing import Any

from service.answer.events import BaseEvent
from tests.support.events import sse

DONE = ".run[data-phase=done]"


async def ask(
    tab: Any, question: str = "Who composed Norma?", *, folded: bool = False, **choices: str
) -> None:
    """Ask, and show what all steps hold, those to come included, unless `folded`."""
    await tab.fill("#question", question)
    for name, value in choices.items():
        await tab.wait_for_selector(f"#{name} option[value={value}]", state="attached")
        await tab.select_option(f"#{name}", value)
    await tab.click("#submit")
    if not folded:
        for button in await tab.query_selector_all(".run .steps button"):
            await button.dispatch_event("click")


async def violations(tab: Any) -> str:
    """What axe finds wrong on the page."""
    from axe_playwright_python.async_playwright import Axe

    found = await Axe().run(tab)
    return str(found.generate_report()) if found.violations_count else ""


async def replay(
    tab: Any, *events: BaseEvent, url: str, folded: bool = False, until: str = DONE
) -> None:
    """Open the page, answer its next question by these events, and wait for what they lead to."""
    await tab.goto(url)
    await tab.route(
        "**/answer/stream",
        lambda route: route.fulfill(body=sse(*events), content_type="text/event-stream"),
    )
    await ask(tab, folded=folded)
    await tab.wait_for_selector(until)

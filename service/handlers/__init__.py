"""The four routes, one file each."""

from __future__ import annotations

from collections.abc import AsyncIterator

from service.domain import LoopName, RouteName
from service.events import BaseEvent
from service.handlers.complex import handle_complex
from service.handlers.compound import handle_compound
from service.handlers.direct import handle_direct
from service.handlers.single import handle_single
from service.inquiry import Scope
from service.loops import get_loop


def handle(scope: Scope, route: RouteName, loop: LoopName) -> AsyncIterator[BaseEvent]:
    """Yield the events of a routed question. The last one is `Stop`."""
    question = scope.inquiry.question
    if route == "direct":
        return handle_direct(scope, question)
    if route == "compound":
        return handle_compound(scope, question, get_loop(loop))
    if route == "complex" and loop == "anrag":
        return handle_complex(scope, question)
    if route == "single" and loop == "anrag":
        return handle_single(scope, question)
    return get_loop(loop).run(scope, question, "answer")

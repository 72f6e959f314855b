"""The routes and the loops: which code answers a routed question."""

from __future__ import annotations

from typing import Final

from service.answer.calls import Roles
from service.answer.inquiry import Scope
from service.core.domain import LoopName, RouteName
from service.core.errors import LoopUnavailable
from service.core.settings import Settings
from service.strategies.anrag import Anrag, NoRetrieval, OneRetrieval
from service.strategies.autorag import Autorag
from service.strategies.base import Method
from service.strategies.chains import Ircot, IterRetgen, SelfAsk
from service.strategies.drafting import FixedLength, FixedSentence
from service.strategies.dragin import Dragin
from service.strategies.efficientrag import EfficientRag
from service.strategies.flare import Flare
from service.strategies.gates import EntropyGate, MarginGate, TrendGate
from service.strategies.routes import Complex, Compound, Single, Survey
from service.strategies.searcher import Searcher

_ALL: Final[tuple[type[Method], ...]] = (
    Anrag, Autorag, Dragin, EfficientRag, NoRetrieval, OneRetrieval, EntropyGate, MarginGate,
    TrendGate, FixedLength, FixedSentence, Flare, Ircot, IterRetgen, SelfAsk, Searcher,
)  # fmt: skip
LOOPS: Final = {loop.name: loop for loop in _ALL}
SAMPLED: Final = tuple(loop.name for loop in _ALL if loop.sampled)


def check_loop(name: LoopName, roles: Roles, settings: Settings) -> None:
    """Raise LoopUnavailable if this deployment cannot run the loop."""
    if lacking := LOOPS[name].missing(roles, settings):
        raise LoopUnavailable(f"the loop {name!r} cannot run in this deployment: {lacking}")


async def handle(scope: Scope, route: RouteName, loop: LoopName) -> None:
    """Answer a routed question in steps of `scope`."""
    question, fold = scope.inquiry.question, scope.inquiry.fold
    kind = NoRetrieval if route == "direct" else LOOPS[loop]
    fold.answering = kind.answering
    method: Method
    if route == "compound":
        handler = Survey if fold.surveys else Compound
        method = handler(scope, question, kind)
    elif loop == "anrag":
        method = Complex(scope, question) if route == "complex" else Single(scope, question)
    else:
        method = kind(scope, question)
    await method.run()

"""The routes and the loops: which code answers a routed question."""

from __future__ import annotations

from service.answer.calls import Roles
from service.answer.inquiry import Scope
from service.core.domain import LoopName, RouteName
from service.core.errors import LoopUnavailable
from service.core.settings import Settings
from service.strategies.anrag import Anrag
from service.strategies.autorag import Autorag
from service.strategies.base import Demanding, Loop, Outcome
from service.strategies.complex import handle_complex
from service.strategies.compound import handle_compound
from service.strategies.direct import handle_direct
from service.strategies.dragin import Dragin
from service.strategies.efficientrag import EfficientRag
from service.strategies.entropy_gate import EntropyGate
from service.strategies.fixed_length import FixedLength
from service.strategies.fixed_sentence import FixedSentence
from service.strategies.flare import Flare
from service.strategies.ircot import Ircot
from service.strategies.iter_retgen import IterRetgen
from service.strategies.no_retrieval import NoRetrieval
from service.strategies.one_retrieval import OneRetrieval
from service.strategies.self_ask import SelfAsk
from service.strategies.single import handle_single

_ALL: tuple[Loop, ...] = (
    Anrag(),
    Autorag(),
    Dragin(),
    EfficientRag(),
    NoRetrieval(),
    OneRetrieval(),
    EntropyGate(),
    FixedLength(),
    FixedSentence(),
    Flare(),
    Ircot(),
    IterRetgen(),
    SelfAsk(),
)
SAMPLED: tuple[LoopName, ...] = ("anrag", "no_retrieval", "one_retrieval", "entropy_gate")
# Loops that continue a raw text, without the turns of a chat.
RAW: frozenset[LoopName] = frozenset(
    ("dragin", "flare", "fixed_length", "fixed_sentence", "ircot", "iter_retgen")
)
LOOPS: dict[str, Loop] = {loop.name: loop for loop in _ALL}


def check_loop(name: LoopName, roles: Roles, settings: Settings) -> None:
    """Raise LoopUnavailable if this deployment cannot run the loop."""
    loop = LOOPS[name]
    if isinstance(loop, Demanding) and (lacking := loop.missing(roles, settings)):
        raise LoopUnavailable(f"the loop {name!r} cannot run in this deployment: {lacking}")
    reader = roles.reader.generator
    if name in RAW and not reader.capabilities.raw:
        raise LoopUnavailable(
            f"the loop {name!r} cannot run in this deployment: the server of the engine "
            f"{reader.name!r} has no /v1/completions, which the loop needs; use another loop, or a "
            "server that has it, such as vLLM or llama.cpp"
        )


async def handle(scope: Scope, route: RouteName, loop: LoopName) -> Outcome:
    """Answer a routed question in steps of `scope`."""
    question = scope.inquiry.question
    if route == "direct":
        return await handle_direct(scope, question)
    if route == "compound":
        return await handle_compound(scope, question, LOOPS[loop])
    if route == "complex" and loop == "anrag":
        return await handle_complex(scope, question)
    if route == "single" and loop == "anrag":
        return await handle_single(scope, question)
    return await LOOPS[loop].run(scope, question, "answer")

"""The loop `searcher`: models that were trained to search while they reason (METHODS.md §10).

The model continues one raw text. A turn ends with a query between tags, whose results are appended,
or with the answer. Each turn opens a step: `retrieve`, with the reasoning as `thought`, the `query`
and the `passages`, or `answer`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from service.answer.calls import Role, Roles, with_restarts
from service.answer.events import ThoughtWritten, Token, TokenRole
from service.answer.inquiry import Choice, OpenStep, Scope
from service.core.concurrency import closing
from service.core.domain import Passage
from service.core.errors import LimitReached
from service.core.settings import Settings
from service.core.settings.loops import SearcherProtocol
from service.engines.base import FinishReason, GenerationRequest
from service.prompts.quoting import quote
from service.prompts.templates import TemplateSet
from service.strategies.anrag import TOKENS_PER_LETTER
from service.strategies.base import Method, Outcome, lacking_template
from service.strategies.reading.answers import read_answer

TURN_TOKENS: Final = 512
TEMPLATE: Final = "searcher"
BOXED: Final = ("\\boxed{", "}")
_ANSWER: Final = ("<answer>", "</answer>")
_TAGGED: Final = ("<search>", "</search>")
_INVALID: Final = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> "
    "and </search>. If I want to give the final answer, I should put the answer between <answer> "
    "and </answer>. Let me try again.\n"
)


class Protocol(NamedTuple):
    """What a family of models was trained on.

    A query is between the tags `search`, the results between `results`, a line for each `passage`,
    and the answer between `answer`. `top_k` passages are shown, for at most `searches` queries.
    `models`: what their names contain. `invalid` is appended to a turn with neither query nor
    answer; without it, such a turn is the last one. If `bare`, white space around a turn is
    removed; if not, that around the results is.
    """

    search: tuple[str, str]
    results: tuple[str, str]
    passage: str
    answer: tuple[str, str]
    top_k: int
    searches: int
    models: Sequence[str]
    invalid: str = ""
    bare: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings: the ends of query and answer, and results that the model makes up."""
        ends = (self.search[1], self.answer[1]) if self.answer != BOXED else (self.search[1],)
        return (*ends, self.results[0].strip())

    def shown(self, passages: Sequence[Passage]) -> str:
        """Return the results of a query as they are appended, as data."""
        lines = [
            self.passage.format(n=n, title=quote(each.title), text=quote(each.text))
            for n, each in enumerate(passages, 1)
        ]
        text = "".join(lines)
        return self.results[0] + (text if self.bare else text.strip()) + self.results[1]


PROTOCOLS: Final[Mapping[SearcherProtocol, Protocol]] = {
    "search_r1": Protocol(
        _TAGGED, ("\n\n<information>", "</information>\n\n"), "Doc {n}(Title: {title}) {text}\n",
        _ANSWER, 3, 4, ("search-r1", "searchr1"), _INVALID,
    ),
    "autorefine": Protocol(
        _TAGGED, ("\n\n<documents>", "</documents>\n\n"), "Doc {n}(Title: {title}) {text}\n",
        _ANSWER, 3, 5, ("autorefine",), _INVALID,
    ),
    "r1_searcher": Protocol(
        ("<|begin_of_query|>", "<|end_of_query|>"),
        ("\n\n<|begin_of_documents|>\n", "\n<|end_of_documents|>\n\n"),
        "({n})Title: {title} Text: {text}\n",
        _ANSWER, 5, 5, ("r1-searcher", "r1searcher", "rag-rl"), bare=True,
    ),
    "simple_deep_searcher": Protocol(
        ("<|begin_search_query|>", "<|end_search_query|>"),
        ("\n\n<|begin_search_result|>\n", "\n<|end_search_result|>\n\n"),
        "({n})Title: {title} Text: {text}\n",
        BOXED, 5, 10, ("simpledeepsearcher", "simple-deep-searcher"), bare=True,
    ),
}  # fmt: skip


class Turn(NamedTuple):
    """What a turn says: its reasoning, and a query or an answer, if it has one."""

    thought: str
    query: str | None = None
    answer: str | None = None

    @property
    def acts(self) -> bool:
        return self.query is not None or self.answer is not None


def closed(text: str, finish: FinishReason | None, protocol: Protocol) -> str:
    """Return a turn with the tag that the engine stopped at, which is not part of its output. A
    turn that was cut has none."""
    if finish == "length":
        return text
    for begin, end in (protocol.search, protocol.answer):
        if end in protocol.stops and text.rfind(begin) > text.rfind(end):
            return text + end
    return text


def read_turn(text: str, protocol: Protocol) -> Turn:
    """Read a whole turn: its first complete query or answer counts; an answer in a box counts
    before a query."""
    query, answer = (
        re.search(f"{re.escape(begin)}(.*?){re.escape(end)}", text, re.DOTALL)
        for begin, end in (protocol.search, protocol.answer)
    )
    if answer and (not query or protocol.answer == BOXED or answer.start() < query.start()):
        return Turn(_thought(text[: answer.start()]), answer=answer[1].strip())
    if query:
        return Turn(_thought(text[: query.start()]), query=" ".join(query[1].split()))
    return Turn(_thought(text))


def _thought(text: str) -> str:
    return text.replace("<think>", "").replace("</think>", "").strip()


def protocol_name(settings: Settings, reader: Role) -> SearcherProtocol | None:
    """Return the protocol that the settings name, or that the name of the reader's model tells."""
    if settings.searcher.protocol:
        return settings.searcher.protocol
    engine = settings.engines.get(reader.generator.name)
    model = f"{reader.model or ''} {engine.model if engine else ''}".casefold()
    found = (name for name, own in PROTOCOLS.items() if any(part in model for part in own.models))
    return next(found, None)


def instruction(templates: TemplateSet, name: SearcherProtocol, question: str) -> str:
    """Return the text that the model continues: by the file of the protocol if the set of templates
    has it, else by our own."""
    protocol = PROTOCOLS[name]
    end = "" if protocol.answer == BOXED else " "
    fields = {
        "question": quote(question),
        "query": f"{protocol.search[0]} query {protocol.search[1]}",
        "passages": f"{protocol.results[0].strip()} and {protocol.results[1].strip()}",
        "answer": f"{protocol.answer[0]}{end}answer{end}{protocol.answer[1]}",
    }
    own = f"{TEMPLATE}_{name}"
    return templates.render(own if templates.has(own) else TEMPLATE, **fields)


class Searcher(Method):
    """Let a trained model reason and search until it answers. The request's `max_steps`, if given,
    is the maximum number of searches, its `top_k` the number of passages."""

    name = "searcher"
    raw = True

    def __init__(self, scope: Scope, question: str, as_role: TokenRole = "answer") -> None:
        super().__init__(scope, question, as_role)
        name = protocol_name(self.inquiry.settings, self.reader) or "search_r1"
        self.protocol = PROTOCOLS[name]
        self.text = instruction(self.templates, name, question.strip())
        self.most = self.request.max_steps or self.protocol.searches
        self.turns = 0
        self.seen: set[str] = set()
        self.searched = False

    @classmethod
    def missing(cls, roles: Roles, settings: Settings) -> str | None:
        if protocol_name(settings, roles.reader) is None:
            return (
                "the name of the model does not tell how it was trained to search; set "
                f"searcher.protocol to {', '.join(PROTOCOLS)}"
            )
        return lacking_template(roles.reader.templates, [TEMPLATE])

    async def run(self) -> Outcome:
        while True:
            step, turn = self.scope.step("retrieve", self.question), Turn("")
            try:
                if self.may_go_on():
                    turn = await self._turn(step)
            except LimitReached as limit:
                self.stopped_by = limit.stopped_by
            if turn.query is not None and self.turns <= self.most:
                async with self.within(step):
                    await self._search(step, turn)
                continue
            step.kind = "answer"
            async with self.within(step):
                await self._conclude(step, turn)
            return Outcome(step.answer, self.stopped_by)

    async def _turn(self, step: OpenStep) -> Turn:
        """Let the model write until it searches or answers. A turn that does neither counts."""
        while True:
            self.turns += 1
            if self._fills_context():
                step.flag("shortened")
                self.stopped_by = "budget"
                return Turn("")
            text = await with_restarts(partial(self._write, step))
            self.text += text.strip() if self.protocol.bare else text
            turn = read_turn(text, self.protocol)
            if turn.acts or not self.protocol.invalid or self.turns > self.most:
                return turn
            step.flag("repaired")
            self.text += self.protocol.invalid

    async def _write(self, step: OpenStep) -> str:
        """Return the next turn as it was written, with its reasoning, which the text keeps."""
        request = GenerationRequest(
            prompt=self.text, max_tokens=TURN_TOKENS, stop=self.protocol.stops
        )
        final, pieces = self.final and self.turns > self.most, list[str]()
        with step.counted(self.reader, request, final=final) as call:
            addressed = step.addressed(self.reader, request)
            async with closing(self.reader.generator.stream(addressed)) as deltas:
                while delta := await step.timed(anext(deltas, None), final=final):
                    call.see(delta)
                    pieces.append(delta.text)
        return closed("".join(pieces), call.finish, self.protocol)

    def _fills_context(self) -> bool:
        context = self.able.context_tokens
        return context is not None and len(self.text) * TOKENS_PER_LETTER + TURN_TOKENS > context

    async def _search(self, step: OpenStep, turn: Turn) -> None:
        """Append what the query finds. An empty one is not sent, and finds nothing."""
        if turn.thought:
            await step.emit(ThoughtWritten(text=turn.thought))
        passages: list[Passage] = []
        self.searched = True
        if turn.query:
            result = await step.search(turn.query, self.request.top_k or self.protocol.top_k)
            passages = [hit.passage for hit in result.passages]
            await step.show_passages(result, [Choice(True)] * len(passages))
        found = {passage.passage_id for passage in passages}
        if not found - self.seen:
            step.flag("no_new_evidence" if self.seen else "no_evidence")
        self.seen |= found
        self.text += self.protocol.shown(passages)

    async def _conclude(self, step: OpenStep, turn: Turn) -> None:
        """Emit the answer. If searches found nothing and the settings require it, there is none."""
        if turn.thought:
            await step.emit(ThoughtWritten(text=turn.thought))
        if turn.query is not None:
            self.stopped_by = "max_steps"
        if not turn.answer:
            if turn.thought and turn.query is None:
                step.flag("unread_answer")
            return
        reading = read_answer(turn.answer, self.question)
        if reading.declined:
            step.flag("declined")
        if reading.answer is None or (self.inquiry.abstains and self.searched and not self.seen):
            return
        if not self.seen:
            step.flag("closed_book")
        step.answer = reading.answer
        await step.emit(Token(role=self.as_role, text=reading.answer))

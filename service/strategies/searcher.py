"""The loop `searcher`: models that were trained to search while they reason (METHODS.md §10).

The model continues one raw text. A turn ends with a query between tags, whose results are appended,
or with the answer. Each turn opens a step: `retrieve`, with the reasoning as `thought`, the `query`
and the `passages`, or `answer`. CoRAG's models are asked in chats instead (`Corag`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from service.answer.calls import Role, Roles, chat
from service.answer.events import ThoughtWritten
from service.answer.inquiry import OpenStep
from service.core.domain import Passage
from service.core.settings import Settings
from service.core.settings.loops import SearcherProtocol
from service.engines.base import FinishReason, GenerationRequest
from service.prompts.quoting import quote
from service.prompts.templates import Prompt, TemplateSet
from service.strategies.anrag import TOKENS_PER_LETTER
from service.strategies.base import Method, lacking_template
from service.strategies.calls import RETRY_TEMPERATURE
from service.strategies.reader import verify, write_answer
from service.strategies.reading.answers import read_answer

TURN_TOKENS: Final = 512
TEMPLATE: Final = "searcher"
CHATS: Final = ("searcher_corag_query", "searcher_corag_answer", "searcher_corag_final")
FINAL_PASSAGES: Final = 20
QUERY_TOKENS: Final = 64
ANSWER_TOKENS: Final = 128
_TEXT = re.compile(r"\A\\text\{(.*)\}\Z")
_NUMBERED = re.compile(r"\AIntermediate query \d+: ")
BOXED: Final = ("\\boxed{", "}")
_ANSWER: Final = ("<answer>", "</answer>")
_TAGGED: Final = ("<search>", "</search>")
NO_CALL: Final = "error: \nthe call is not a JSON object with the argument query"
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
    removed; if not, that around the results is. With a `response`, which is what is shown of one
    query, a turn may have several, each a call of a tool in JSON; `ends` are its stop strings.
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
    response: str = ""
    ends: tuple[str, ...] = ()

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings: the ends of query and answer, and results that the model makes up."""
        ends = (self.search[1], self.answer[1]) if self.answer != BOXED else (self.search[1],)
        return self.ends or (*ends, self.results[0].strip())

    def shown(self, found: Sequence[tuple[str, Sequence[Passage]]]) -> str:
        """Return the results of a turn's queries as they are appended, as data."""
        return self.results[0] + "".join(self._shown(*one) for one in found) + self.results[1]

    def _shown(self, call: str, passages: Sequence[Passage]) -> str:
        lines = [
            self.passage.format(n=n, title=quote(passage.title), text=quote(passage.text))
            for n, passage in enumerate(passages, 1)
        ]
        text = "".join(lines) if self.bare else "".join(lines).strip()
        if not self.response:
            return text
        text = f"result: \n{text}" if text else "" if self.query_of(call) else NO_CALL
        return self.response.format(call=call, text=text)

    def query_of(self, call: str) -> str:
        """Return the query of a call; it is empty if the call cannot be read."""
        if self.response:
            try:
                call = json.loads(call)["arguments"]["query"]
            except (ValueError, LookupError, TypeError, RecursionError):
                return ""
        return " ".join(call.split()) if isinstance(call, str) else ""


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
    "recall": Protocol(
        ("<tool_call>", "</tool_call>"),
        ("<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>"),
        "{title}\n{text}\n\n",
        BOXED, 5, 4, ("recall", "re-call"),
        response="<tool_response>{call}\n{text}\n</tool_response>\n",
        ends=("<|im_end|>", "<tool_response>"),
    ),
}  # fmt: skip


class Turn(NamedTuple):
    """What a turn says: its reasoning, and queries (or calls of a tool) or an answer, if it has
    any."""

    thought: str
    calls: tuple[str, ...] = ()
    answer: str | None = None

    @property
    def acts(self) -> bool:
        return bool(self.calls) or self.answer is not None


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
    before a query. Calls of a tool all count, and before an answer, if each of their tags has its
    end."""
    if protocol.response:
        return _read_calls(text, protocol)
    query, answer = (
        re.search(f"{re.escape(begin)}(.*?){re.escape(end)}", text, re.DOTALL)
        for begin, end in (protocol.search, protocol.answer)
    )
    if answer and (not query or protocol.answer == BOXED or answer.start() < query.start()):
        return Turn(_thought(text[: answer.start()]), answer=answer[1].strip())
    if query:
        return Turn(_thought(text[: query.start()]), (" ".join(query[1].split()),))
    return Turn(_thought(text))


def _read_calls(text: str, protocol: Protocol) -> Turn:
    begin, end = protocol.search
    tags = re.findall(f"{re.escape(begin)}|{re.escape(end)}", text)
    if tags and tags == [begin, end] * (len(tags) // 2):
        calls = re.findall(f"{re.escape(begin)}(.*?){re.escape(end)}", text, re.DOTALL)
        return Turn(_thought(text[: text.index(begin)]), tuple(call.strip() for call in calls))
    box = text.rfind(protocol.answer[0])
    inside, open_braces = text[box + len(protocol.answer[0]) :], 1
    for place, letter in enumerate(inside if box >= 0 else ""):
        open_braces += {"{": 1, "}": -1}.get(letter, 0)
        if not open_braces:
            return Turn(_thought(text[:box]), answer=_TEXT.sub(r"\1", inside[:place].strip()))
    return Turn(_thought(text))


def _thought(text: str) -> str:
    return text.replace("<think>", "").replace("</think>", "").strip()


def protocol_name(settings: Settings, reader: Role) -> SearcherProtocol | None:
    """Return the protocol that the settings name, or that the name of the reader's model tells."""
    if settings.searcher.protocol:
        return settings.searcher.protocol
    engine = settings.engines.get(reader.generator.name)
    model = f"{reader.model or ''} {engine.model if engine else ''}".casefold()
    found = (
        name
        for name, protocol in PROTOCOLS.items()
        if any(part in model for part in protocol.models)
    )
    return "corag" if "corag" in model else next(found, None)


def instruction(templates: TemplateSet, name: SearcherProtocol, question: str) -> str:
    """Return the text that the model continues: by the file of the protocol if the set of templates
    has it, else by our own; with the line breaks at the end of the file, since the text is raw."""
    protocol = PROTOCOLS[name]
    end = "" if protocol.answer == BOXED else " "
    fields = {
        "question": quote(question),
        "query": f"{protocol.search[0]} query {protocol.search[1]}",
        "passages": f"{protocol.results[0].strip()} and {protocol.results[1].strip()}",
        "answer": f"{protocol.answer[0]}{end}answer{end}{protocol.answer[1]}",
    }
    named = f"{TEMPLATE}_{name}"
    role = named if templates.has(named) else TEMPLATE
    return templates.render(role, **fields) + templates.end_of(role)


class Searcher(Method):
    """Let a trained model reason and search until it answers, as its protocol says where the
    request does not."""

    name = "searcher"
    raw = True

    turns = 0
    searched = False

    @classmethod
    def missing(cls, roles: Roles, settings: Settings) -> str | None:
        name = protocol_name(settings, roles.reader)
        if name is None:
            return (
                "the name of the model does not tell how it was trained to search; set "
                f"searcher.protocol to {', '.join((*PROTOCOLS, 'corag'))}"
            )
        needs = CHATS if name == "corag" else [TEMPLATE]
        lacking = lacking_template(roles.reader.templates, needs)
        return lacking or super().missing(roles, settings)

    async def run(self) -> str | None:
        name = protocol_name(self.inquiry.settings, self.reader) or "search_r1"
        if name == "corag":
            return await Corag(self.scope, self.question).run()
        self.protocol = PROTOCOLS[name]
        self.text = instruction(self.templates, name, self.question.strip())
        self.max_steps = self.request.max_steps or self.protocol.searches
        while True:
            step, turn = self.step("retrieve"), Turn("")
            step.began = round(self.inquiry.budget.elapsed_s * 1000, 3)  # its call decides its kind
            with self.scope.limited():
                if self.scope.may_go_on():
                    turn = await self._turn(step)
            if turn.calls and self.turns <= self.max_steps:
                await self._search(step, turn)
                continue
            step.kind = "answer"
            async with step:
                await self._conclude(step, turn)
            return step.answer

    async def _turn(self, step: OpenStep) -> Turn:
        """Let the model write until it searches or answers. A turn that does neither counts."""
        while True:
            self.turns += 1
            context, size = self.able.context_tokens, len(self.text) * TOKENS_PER_LETTER
            if context is not None and size + TURN_TOKENS > context:
                step.flag("shortened")
                self.scope.stopped_by = "budget"
                return Turn("")
            text = await self._write(step)
            self.text += text.strip() if self.protocol.bare else text
            turn = read_turn(text, self.protocol)
            if turn.acts or not self.protocol.invalid or self.turns > self.max_steps:
                return turn
            step.flag("repaired")
            self.text += self.protocol.invalid

    async def _write(self, step: OpenStep) -> str:
        """Return the next turn as it was written, with its reasoning, which the text keeps."""
        request = GenerationRequest(
            prompt=self.text, max_tokens=TURN_TOKENS, stop=self.protocol.stops
        )
        final = step.final and self.turns > self.max_steps
        written = await step.ask("reader", request, final=final)
        return closed(written.text, written.finish, self.protocol)

    async def _search(self, step: OpenStep, turn: Turn) -> None:
        """Append what the queries find, each in a step of its own. An empty one is not sent, and
        finds nothing."""
        found = [(call, list[Passage]()) for call in turn.calls]
        for number, (call, passages) in enumerate(found):
            if number:
                step = self.step("retrieve")
            async with step:
                if turn.thought and not number:
                    await step.emit(ThoughtWritten(text=turn.thought))
                top_k = self.request.top_k or self.protocol.top_k
                passages.extend(await self._found(step, self.protocol.query_of(call), top_k))
        self.text += self.protocol.shown(found)

    async def _found(self, step: OpenStep, query: str, top_k: int) -> list[Passage]:
        self.searched = True
        if query:
            return await self.find(step, query, top_k)
        step.flag("no_new_evidence" if self.seen else "no_evidence")
        return []

    async def _conclude(self, step: OpenStep, turn: Turn) -> None:
        """Emit the answer. If searches found nothing and the settings require it, there is none."""
        if turn.thought:
            await step.emit(ThoughtWritten(text=turn.thought))
        if turn.calls:
            self.scope.stopped_by = "max_steps"
        if not turn.answer:
            if turn.thought and not turn.calls:
                step.flag("unread_answer")
            return
        reading = read_answer(turn.answer, self.question)
        if reading.declined:
            step.flag("declined")
        if reading.answer is None or (self.inquiry.abstains and self.searched and not self.seen):
            return
        if not self.seen:
            step.flag("closed_book")
        await step.say(reading.answer)
        await verify(step, self.seen.values())


class Corag(Searcher):
    """CoRAG: a sub-query is written, searched and answered, up to `max_steps` times; the answer is
    written from these pairs and from what the question itself finds. Each call is a chat of one
    message, with the least relevant passage first.
    """

    default_steps = 3
    default_top_k = 5

    async def run(self) -> str | None:
        self.pairs: list[tuple[str, str]] = []
        self.asked = 0
        scope = self.scope
        while (
            len(self.pairs) < self.max_steps and scope.stopped_by == "answer" and scope.may_go_on()
        ):
            async with self.step("retrieve") as step:
                if not await self._link(step):
                    break
        async with self.step("answer") as step:
            if self.scope.stopped_by == "answer":
                await self._combine(step)
        return step.answer

    async def _link(self, step: OpenStep) -> bool:
        """Return whether there was a new sub-query. A repeated one is asked for again, at a higher
        temperature, with at most four calls for each of the chain's."""
        query, known, heat = "", [query for query, _ in self.pairs], 0.0
        while not query or query in known:
            if self.asked == 4 * self.max_steps:
                step.flag("no_progress")
                return False
            self.asked += 1
            prompt = self.prompt(CHATS[0], question=self.question.strip())
            query = sub_query(await self._say(step, prompt, QUERY_TOKENS, heat))
            heat = RETRY_TEMPERATURE
        passages = await self.find(step, query, self.top_k)
        shown = "".join(f"{page(passage)}\n\n" for passage in reversed(passages)).strip()
        prompt = self.templates.render(CHATS[1], query=quote(query), passages=shown)
        step.answer = await self._say(step, prompt, ANSWER_TOKENS, 0.0)
        self.pairs.append((query, step.answer))
        return True

    async def _combine(self, step: OpenStep) -> None:
        passages = await self.find(step, self.question, FINAL_PASSAGES)
        if self.inquiry.abstains and not self.seen:
            return
        numbered = enumerate(reversed(passages))
        shown = "".join(f"Doc {n}: {page(passage)}\n\n" for n, passage in numbered).strip()
        prompt = self.prompt(CHATS[2], question=self.question.strip(), passages=shown)
        await write_answer(step, prompt, ANSWER_TOKENS)
        await verify(step, self.seen.values())

    def prompt(self, role: str, **fields: str) -> Prompt:
        lines = [
            f"Intermediate query {n}: {quote(query)}\nIntermediate answer {n}: {quote(answer)}\n"
            for n, (query, answer) in enumerate(self.pairs, 1)
        ]
        history = "".join(lines).strip() or "Nothing yet"
        fields["question"] = quote(fields["question"])
        return self.templates.render(role, history=history, **fields)

    async def _say(self, step: OpenStep, prompt: Prompt, most: int, heat: float) -> str:
        request = chat(prompt, max_tokens=most, temperature=heat)
        return (await step.ask("reader", request)).text.strip()


def sub_query(text: str) -> str:
    """Return a sub-query without the quotation marks or the number that a model may write."""
    text = text.strip()
    if text.startswith('"') and text.endswith('"'):
        text = text[1:-1]
    return _NUMBERED.sub("", text)


def page(passage: Passage) -> str:
    """Return a passage as CoRAG shows it."""
    return f"{quote(passage.title)}\n{quote(passage.text)}".strip()

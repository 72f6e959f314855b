"""Methods that reason in text, and search with it (METHODS.md §8): `ircot`, `iter_retgen` and
`self_ask`. What they find is collected, each passage once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, NamedTuple

from service.answer.events import RetrievedPassage, ThoughtWritten
from service.answer.evidence import shown_text
from service.answer.inquiry import Choice, OpenStep
from service.core.domain import RetrieverName, StoppedBy
from service.engines.base import Completion, GenerationRequest
from service.prompts.quoting import quote
from service.prompts.templates import NO_ANSWER, Pair, Prompt, TemplateSet
from service.retrieval.base import SearchResult
from service.strategies.anrag import TOKENS_PER_LETTER, best_first
from service.strategies.base import Method
from service.strategies.calls import RETRY_TEMPERATURE, PromptCall
from service.strategies.draft_text import (
    ROLES,
    Layout,
    as_data,
    cut_overrun,
    join,
    opening_layout,
    stated_answer,
)
from service.strategies.planner import QUESTION_TOKENS, judge_ending, refine, was_asked
from service.strategies.reader import verify, write_answer
from service.strategies.reading.answers import read_answer
from service.strategies.reading.text import ends_with
from service.text import sentences

AGAIN: Final = Choice(False, "collected before")
FULL: Final = Choice(False, "the collection is full")
COLLECTED: Final = Choice(True, "collected")


@dataclass(slots=True)
class Collected:
    """Passages in the order in which they were found, each once; `most` of them, or all. Each is
    `found` by a step, in a round of retrieval."""

    most: float = math.inf
    found: list[tuple[RetrievedPassage, OpenStep, int]] = field(default_factory=list)
    rounds: int = 0

    def add(self, step: OpenStep, result: SearchResult) -> list[Choice]:
        """Add the result of a retrieval. Returns for each hit whether it was added."""
        self.rounds += 1
        choices = []
        for passage in map(RetrievedPassage.of, result.passages):
            if any(_same(passage, known) for known in self.passages):
                choices.append(AGAIN)
            elif len(self.found) >= self.most:
                choices.append(FULL)
            else:
                self.found.append((passage, step, self.rounds))
                choices.append(COLLECTED)
        return choices

    @property
    def passages(self) -> list[RetrievedPassage]:
        return [passage for passage, _, _ in self.found]

    def newest(self, count: int) -> list[RetrievedPassage]:
        """The best-ranked passages of the newest retrievals, in the order in which they were
        found."""
        first = sorted(self.found, key=lambda found: (-found[2], found[0].rank))
        chosen = first[:count]
        return [found[0] for found in self.found if found in chosen]


def _same(one: RetrievedPassage, other: RetrievedPassage) -> bool:
    alike = (one.title, one.text) == (other.title, other.text)
    return one.passage_id == other.passage_id or alike


class Chain(Method):
    """A method that collects passages for its chain of thought."""

    @property
    def readable(self) -> int:
        """The number of passages of a search that is read by itself."""
        return self.request.top_k or self.able.passages or self.default_top_k

    async def collect(self, step: OpenStep, query: str, top_k: int, collected: Collected) -> None:
        """Search in an open step, and collect what is found. Raises as `OpenStep.search`."""
        before = len(collected.found)
        result = await step.search(query, top_k)
        await step.show_passages(result, collected.add(step, result))
        if len(collected.found) == before:
            step.flag("no_new_evidence" if before else "no_evidence")

    async def generate(
        self, step: OpenStep, layout: Layout, max_tokens: int, *, final: bool = False
    ) -> Completion:
        """Continue a text by at most a line."""
        prompt = layout.prompt().text
        request = GenerationRequest(prompt=prompt, max_tokens=max_tokens, stop=("\n",))
        return await step.ask("reader", request, final=final)

    def lay(
        self, written: str, collected: Collected, max_tokens: int
    ) -> tuple[Layout, list[RetrievedPassage]]:
        """Return the prompt for what follows the text `written`, with the newest passages that fit
        the reader's context beside the output, and these passages. If a single passage is too long,
        it is shortened."""
        layout = replace(
            opening_layout(self.templates, self.question.strip(), may_decline=True), written=written
        )
        count = len(collected.found)
        most = min(count, self.able.passages or count)
        shown = [collected.newest(number) for number in range(most, 0, -1)] or [[]]
        layouts = [
            replace(layout, passages=tuple(map(as_data, map(shown_text, found)))) for found in shown
        ]
        if self.able.context_tokens is None:
            return layouts[0], shown[0]
        room = (self.able.context_tokens - max_tokens) / TOKENS_PER_LETTER
        shorter = ((layout, shown[-1]) for layout in layouts[-1].shorter())
        candidates = list(chain(zip(layouts, shown, strict=True), shorter))
        fitting = (layout for layout in candidates if len(layout[0].prompt().text.encode()) <= room)
        chosen, passages = next(fitting, candidates[-1])
        return chosen, passages if chosen.passages else []

    async def leave_out(self, collected: Collected, shown: Sequence[RetrievedPassage]) -> None:
        """Emit which passages the reader is not shown."""
        reason = f"not among the {len(shown)} that the reader's model has room for"
        for passage, step, _ in collected.found:
            if passage not in shown:
                await step.judged(passage.passage_id, Choice(False, reason))

    async def answer_from(self, collected: Collected) -> str | None:
        """Answer from the collected passages, in a separate step: best ranks first, as many as the
        reader's model can take. Without any passage the answer is from memory if
        `answers.no_evidence` allows it, else there is none.
        """
        count = len(collected.found)
        if not count and self.inquiry.abstains:
            return None
        shown = best_first(collected.passages, self.able)
        step = self.step("answer")
        await self.leave_out(collected, shown)
        async with step:
            if not shown:
                step.flag("closed_book")
            elif len(shown) < min(self.able.passages or count, count):
                step.flag("shortened")
            await self.read(step, shown)
        return step.answer

    async def read(self, step: OpenStep, shown: Sequence[RetrievedPassage]) -> None:
        """Write the answer to a step's question from passages; from memory, if there are none."""
        role = "answer" if shown else "closed"
        prompt = self.templates.fill(role, step.question, passages=shown)
        await write_answer(step, prompt, closed=not shown)
        await verify(step, shown)


# ---- IRCoT

IRCOT_PASSAGES: Final = 15
SENTENCE_TOKENS: Final = 64
_CONCLUDES: Final = re.compile(r".* answer is:? ")
_INFERS: Final = ("thus ", "thus,", "so ", "so,", "that is,", "therefore", "hence")
_SUM: Final = re.compile(r"\d [+-] \d[\d,]*+(?:\.\d++)?(?<=\d) = \d")
_QUESTION_WORDS: Final = frozenset(
    ["who", "what", "when", "where", "why", "which", "how", "does", "is"]
)


class Ircot(Chain):
    """Retrieve, write one sentence, retrieve with it, until a sentence states the answer
    (METHODS.md §8.1).

    Each retrieval is a step `retrieve`: its `query` is the question, then the newest sentence of
    the chain, and its `answer` the sentence that the model writes next. The chain only collects
    passages; the step `answer` is read from them, not taken from the chain.
    """

    name = "ircot"
    raw = True
    needs = ROLES
    default_steps = 8
    default_top_k = 6

    async def run(self) -> str | None:
        """`max_steps` is the maximum number of sentences."""
        collected, written = Collected(IRCOT_PASSAGES), list[str]()
        ended: StoppedBy | None = None
        while ended is None and self.scope.stopped_by == "answer" and self.scope.may_go_on():
            async with self.scope.step("retrieve", self.question, final=False) as step:
                query = next_query(self.question, written, self.request.retriever)
                if query:
                    await self.collect(step, query, self.top_k, collected)
                written.append(await self._sentence(step, written, collected))
                ended = after_sentence(written, self.max_steps)
        self.scope.stopped_by = ended or self.scope.stopped_by
        return await self.answer_from(collected)

    async def _sentence(self, step: OpenStep, written: Sequence[str], collected: Collected) -> str:
        """Write the next sentence; empty if the model writes none of its own."""
        so_far = join(*map(as_data, written))
        layout, _ = self.lay(so_far, collected, SENTENCE_TOKENS)
        completion = await self.generate(step, layout, SENTENCE_TOKENS)
        sentence = next_sentence(completion.text, written)
        if sentence and layout.borrows(sentence) and not concludes(sentence):
            step.flag("prompt_example")
            return ""
        cut = completion.finish == "length"
        if cut and sentence and ends_with(completion.text, sentence):
            step.flag("shortened")
        if sentence:
            await step.say(sentence)
        return sentence


def next_query(question: str, written: Sequence[str], retriever: RetrieverName) -> str:
    """Return the next query: the newest sentence that states a fact and does not only conclude or
    calculate, or the question if there is none. For `bm25` question words are removed, which may
    leave nothing.
    """
    facts = [
        sentence
        for sentence in written
        if not (sentence.lower().startswith(_INFERS) or _SUM.search(sentence))
    ]
    newest = facts[-1].strip() if facts else ""
    query = newest or question
    if retriever == "bm25":
        words = query.split(" ")
        query = " ".join(word for word in words if word.strip().lower() not in _QUESTION_WORDS)
    return query.strip()


def concludes(sentence: str) -> bool:
    """Whether a sentence states the answer."""
    return _CONCLUDES.match(sentence) is not None


def next_sentence(text: str, written: Sequence[str]) -> str:
    """Return the first sentence of a reply that the chain does not have yet; models that begin
    again from the start repeat what they have written."""
    body = " ".join(text.split())
    found = (body[begin:end].strip() for begin, end in sentences(body))
    return next((sentence for sentence in found if sentence not in written), "")


def after_sentence(written: Sequence[str], most: int) -> StoppedBy | None:
    """Return why the chain ends after its latest sentence, or None if it continues. It ends with a
    sentence that states the answer, with an empty sentence, and at the limit of `most`
    sentences."""
    if not written[-1] or concludes(written[-1]):
        return "answer"
    return "max_steps" if len(written) >= most else None


# ---- ITER-RETGEN

GENERATION_TOKENS: Final = 128


class IterRetgen(Chain):
    """Retrieve and generate in turn, T times; each query has the generation before it
    (METHODS.md §8.2).

    Each iteration is a step `retrieve`: `query` is the question with the previous generation,
    `thought` the generation from the passages of this retrieval alone, and `answer` its conclusion.
    The answer of the last iteration is that of the question.
    """

    name = "iter_retgen"
    raw = True
    needs = ROLES
    default_steps = 3
    default_top_k = 5

    async def run(self) -> str | None:
        """T is `max_steps`."""
        self.text, self.declined = "", False
        self.answer: str | None = None
        self.collected = Collected()
        query, left, shown = "", self.max_steps, False
        while left and self.scope.stopped_by == "answer":
            before, query = query, " ".join([self.question.strip(), *self.text.split()])
            if query == before or not self.scope.may_go_on():
                break  # the same search would be followed by the same generation
            left -= 1
            async with self.step("retrieve") as step:
                found = Collected()
                await self.collect(step, query, self.readable, found)
                if found.found or not self.inquiry.abstains:
                    self.collected = found
                    await self._write(step, last=not left)
                    if not left and self.answer:
                        shown = True
                        await self._say(step, self.answer)
        if shown or (self.answer is None and self.declined):
            return self.answer
        if self.answer is None:
            return await self.answer_from(self.collected)
        async with self.step("answer") as step:
            await self._say(step, self.answer)
        return self.answer

    async def _say(self, step: OpenStep, answer: str) -> None:
        await step.say(answer)
        await verify(step, self.collected.passages)

    async def _write(self, step: OpenStep, *, last: bool) -> None:
        """Write one chain of thought over the passages. Text copied from a demonstration is neither
        used as an answer nor searched for.
        """
        layout, shown = self.lay("", self.collected, GENERATION_TOKENS)
        await self.leave_out(self.collected, shown)
        final = last and step.final
        completion = await self.generate(step, layout, GENERATION_TOKENS, final=final)
        text = cut_overrun(completion.text)
        answer = stated_answer(text)
        self.declined = bool(answer) and read_answer(answer or "", self.question).declined
        if not self.declined and layout.borrows(answer or text):
            step.flag("prompt_example")
            text, answer = "", None
        self.text, self.answer = text, None if self.declined else answer
        if text:
            await step.emit(ThoughtWritten(text=text))
        if self.declined:
            step.flag("declined")
        step.answer = self.answer


# ---- Self-Ask

TEMPLATE: Final = "self_ask"
INTERMEDIATE: Final = "Intermediate answer:"
FOLLOW_UP: Final = "Follow up:"
FINAL: Final = "So the final answer is:"
_INTERMEDIATE: Final = re.compile(r"intermediate answer\s*:", re.IGNORECASE)
_FOLLOW_UP: Final = re.compile(r".*follow[- ]?up(?: question)?\s*:\s*(.*)", re.IGNORECASE)
_FINAL: Final = re.compile(
    r"(?:\A\s*|.*[\n.][^\S\n]*)so the final answer is\s*:[ \t]*(.*)", re.IGNORECASE | re.DOTALL
)


class Turn(NamedTuple):
    """The follow-up `question` that the model asks, or its conclusion: the `answer`; None if that
    must still be requested."""

    question: str | None = None
    answer: str | None = None


def read_turn(text: str) -> Turn:
    """Return what a turn asks or concludes. A follow-up question is in the last line. If a turn has
    neither, the conclusion must be requested."""
    text = _INTERMEDIATE.split(text, maxsplit=1)[0].strip()
    last = text.rpartition("\n")[2].strip()
    if (asked := _FOLLOW_UP.match(last)) and asked[1].strip():
        return Turn(asked[1].strip())
    if (concluded := _FINAL.match(text)) and concluded[1].strip():
        line = concluded[1].strip().partition("\n")[0].strip()
        return Turn(answer=line.removesuffix(".").rstrip() or None)
    return Turn(last if last.endswith("?") else None)


TURN: Final[PromptCall[Turn]] = PromptCall(
    "reader", read_turn, QUESTION_TOKENS, stop=(f"\n{INTERMEDIATE}",),
    texts=lambda turn: [turn.question] if turn.question else [],
)  # fmt: skip


def scratchpad(pairs: Sequence[Pair]) -> str:
    """Return the text after the question in the prompt: the follow-up questions so far, each with
    its intermediate answer."""
    if not pairs:
        return ""
    lines = [" Yes."]
    for pair in pairs:
        answer = quote(pair.answer or NO_ANSWER).removesuffix(".")
        lines += [f"{FOLLOW_UP} {quote(pair.question)}", f"{INTERMEDIATE} {answer}."]
    return "\n".join(lines)


def self_ask_prompt(
    templates: TemplateSet, question: str, pairs: Sequence[Pair], ending: str = ""
) -> Prompt:
    return templates.render(TEMPLATE, question=quote(question), history=scratchpad(pairs) + ending)


class SelfAsk(Chain):
    """Ask follow-up questions, answer each by a search, until the model concludes
    (METHODS.md §8.3).

    Each turn of the model opens a step: `retrieve` for a follow-up question, with its intermediate
    answer as `answer`, or `answer` once the model concludes. A template set without `self_ask` uses
    the forms of HANRAG's roles, which its model was trained on.
    """

    name = "self_ask"
    answering = True
    default_steps = 5
    default_top_k = 5

    async def run(self) -> str | None:
        """`max_steps` is the maximum number of follow-up questions."""
        self.pairs: list[Pair] = []
        while True:
            step, scope, turn = self.step("answer"), self.scope, Turn()
            with scope.limited():
                asked, most = len(self.pairs), self.max_steps
                if scope.stopped_by == "answer" and scope.may_go_on(asked, most):
                    turn = await self._turn(step)
            if turn.question is None:
                async with step:
                    await self._conclude(step, turn.answer)
                return step.answer
            step.kind, step.question, step.final = "retrieve", turn.question, False
            async with step:
                await self._answer_by_search(step)
            self.pairs.append(Pair(turn.question, step.answer))

    def _prompt(self, ending: str = "") -> Prompt:
        return self_ask_prompt(self.templates, self.question, self.pairs, ending)

    async def _turn(self, step: OpenStep) -> Turn:
        """Return the model's follow-up question or conclusion. A follow-up question that is an
        example of the prompt is requested once more; if it is again, or if it was asked before,
        only the conclusion is left. In HANRAG's forms, ENDING is asked instead of "are follow up
        questions needed", and REFINE for the follow-up question.
        """
        if not self.templates.has(TEMPLATE):
            if self.pairs and await judge_ending(step, self.question, self.pairs):
                return Turn()
            return self._unless_repeated(step, await refine(step, self.question, self.pairs))
        prompt = self._prompt()
        for temperature in (0.0, RETRY_TEMPERATURE):
            reply = await TURN.ask(step, prompt, temperature)
            turn = reply.value or Turn()
            if turn.question is None:
                return turn
            cut = reply.cut and not turn.question.endswith("?")
            if not (reply.example or cut):
                return self._unless_repeated(step, turn.question)
        step.flag("prompt_example" if reply.example else "shortened")
        return Turn()

    def _unless_repeated(self, step: OpenStep, question: str) -> Turn:
        if was_asked(question, self.pairs):
            step.flag("refine_loop")
            return Turn()
        return Turn(question)

    async def _answer_by_search(self, step: OpenStep) -> None:
        """Search for the follow-up question, and read its intermediate answer from the passages."""
        found = Collected()
        await self.collect(step, step.question, self.readable, found)
        shown = best_first(found.passages, self.able)
        await self.leave_out(found, shown)
        if not shown and self.inquiry.abstains:
            return
        if not shown:
            step.flag("closed_book")
        await self.read(step, shown)

    async def _conclude(self, step: OpenStep, stated: str | None) -> None:
        """Return the answer that the model stated, or the one it gives when asked to conclude. A
        refusal or an example of the prompt is no answer; without intermediate answers there is
        nothing to conclude from, unless an answer from memory is allowed.
        """
        unfounded = self.inquiry.abstains and not any(pair.answer for pair in self.pairs)
        if stated is not None:
            reading = read_answer(stated, self.question)
            if reading.declined:
                step.flag("declined")
                return None
            founded = not (unfounded and self.pairs)
            if founded and reading.answer and not self._prompt().gives(reading.answer):
                if not self.pairs:
                    step.flag("closed_book")
                return await step.say(reading.answer)
        if unfounded:
            return None
        if self.templates.has(TEMPLATE):
            prompt = self._prompt(f"\n{FINAL}")
        else:
            memory = self.inquiry.settings.answers.invites_memory
            prompt = self.templates.fill("final", self.question, pairs=self.pairs, memory=memory)
        return await write_answer(step, prompt)

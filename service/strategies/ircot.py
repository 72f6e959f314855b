"""The loop `ircot` (METHODS.md §8.1): interleaves a chain of thought with retrieval.

Each retrieval is a step `retrieve`: its `query` is the question, then the newest sentence of the
chain, and its `answer` the sentence that the model writes next. The chain only collects passages;
the step `answer` is read from them, not taken from the chain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from service.answer.calls import Roles
from service.answer.events import Token, TokenRole
from service.answer.inquiry import Inquiry, OpenStep, Scope
from service.core.domain import LoopName, RetrieverName, StoppedBy
from service.core.errors import LimitReached
from service.core.settings import Settings
from service.engines.base import GenerationRequest
from service.strategies.base import Outcome
from service.strategies.collected import (
    Collected,
    answer_from_collected,
    borrows,
    collect,
    with_passages,
)
from service.strategies.drafting.chain import join
from service.strategies.drafting.layout import (
    ROLES,
    Layout,
    as_data,
    lacking_template,
    opening_layout,
)
from service.strategies.revelator.parsing import ends_with
from service.text import sentences

MAX_STEPS: Final = 8
TOP_K: Final = 6
COLLECTED: Final = 15
SENTENCE_TOKENS: Final = 64
_CONCLUDES: Final = re.compile(r".* answer is:? ")
_INFERS: Final = ("thus ", "thus,", "so ", "so,", "that is,", "therefore", "hence")
_NUMBER: Final = r"(?:\d[\d,]*\.?\d+|\d+)"
_SUM: Final = re.compile(rf".*{_NUMBER} [+-] {_NUMBER} = {_NUMBER}")
_QUESTION_WORDS: Final = frozenset(
    ["who", "what", "when", "where", "why", "which", "how", "does", "is"]
)


class Ircot:
    """Retrieve, write one sentence, retrieve with it, until a sentence states the answer."""

    name: LoopName = "ircot"

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        """Return what this deployment lacks for the loop, or None if it can run."""
        return lacking_template(roles.reader.templates, ROLES)

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        """The request's `max_steps`, if given, is the maximum number of sentences."""
        inquiry = scope.inquiry
        templates = inquiry.roles.reader.templates
        chain = _Chain(
            scope, question, opening_layout(templates, question.strip(), may_decline=True),
            most=inquiry.request.max_steps or MAX_STEPS,
        )  # fmt: skip
        while chain.stopped_by is None and not chain.exhausted():
            await _cycle(chain)
        stopped_by = chain.stopped_by or "answer"
        return await answer_from_collected(scope, question, chain.collected, as_role, stopped_by)


@dataclass(slots=True)
class _Chain:
    """A chain in progress. `stopped_by` is set once it has ended."""

    scope: Scope
    question: str
    layout: Layout
    most: int
    sentences: list[str] = field(default_factory=list)
    collected: Collected = field(default_factory=lambda: Collected(COLLECTED))
    stopped_by: StoppedBy | None = None

    @property
    def inquiry(self) -> Inquiry:
        return self.scope.inquiry

    def exhausted(self) -> bool:
        """Whether a limit of the question leaves no room for another step."""
        if why := self.inquiry.budget.exhausted():
            self.stopped_by = why
        return why is not None


async def _cycle(chain: _Chain) -> None:
    """One retrieval, and the sentence that the model writes after it."""
    step = chain.scope.step("retrieve", chain.question)
    await step.start()
    try:
        request = chain.inquiry.request
        query = next_query(chain.question, chain.sentences, request.retriever)
        if query:
            await collect(step, query, request.top_k or TOP_K, chain.collected)
        sentence = await _write_sentence(chain, step)
        chain.sentences.append(sentence)
        chain.stopped_by = after_sentence(chain.sentences, chain.most)
    except LimitReached as limit:
        chain.stopped_by = limit.stopped_by
    await step.end()


async def _write_sentence(chain: _Chain, step: OpenStep) -> str:
    """Write the next sentence; empty if the model writes none of its own."""
    written = join(*map(as_data, chain.sentences))
    reader = chain.inquiry.roles.reader
    layout, _ = with_passages(
        replace(chain.layout, written=written), chain.collected, reader, SENTENCE_TOKENS
    )
    request = GenerationRequest(
        prompt=layout.prompt().text, max_tokens=SENTENCE_TOKENS, stop=("\n",)
    )
    completion = await step.ask("reader", request)
    sentence = next_sentence(completion.text, chain.sentences)
    if sentence and borrows(layout, chain.question, sentence) and not concludes(sentence):
        step.flag("prompt_example")
        return ""
    if completion.finish == "length" and sentence and ends_with(completion.text, sentence):
        step.flag("shortened")
    if sentence:
        step.answer = sentence
        await step.emit(Token(role="draft", text=sentence))
    return sentence


def next_query(question: str, written: Sequence[str], retriever: RetrieverName) -> str:
    """Return the next query: the newest sentence that states a fact, or the question if there is
    none. For `bm25` question words are removed, which may leave nothing.
    """
    facts = [sentence for sentence in written if not infers(sentence)]
    newest = facts[-1].strip() if facts else ""
    return (without_question_words if retriever == "bm25" else str.strip)(newest or question)


def infers(sentence: str) -> bool:
    """Return whether a sentence only draws a conclusion or calculates, so that no passage contains
    it."""
    return sentence.lower().startswith(_INFERS) or _SUM.match(sentence) is not None


def without_question_words(query: str) -> str:
    words = [word for word in query.split(" ") if word.strip().lower() not in _QUESTION_WORDS]
    return " ".join(words).strip()


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

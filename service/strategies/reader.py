"""The reader's work (METHODS.md §1.3): which passages help (REL), and the answer in them (GEN and
its kin), by prompts for language models or by an encoder, which copies answers from passages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from service.answer.calls import chat
from service.answer.events import Place, RetrievedPassage, Withdraw
from service.answer.evidence import bare
from service.answer.inquiry import OpenStep, discard
from service.core.concurrency import gather
from service.core.domain import Passage
from service.core.errors import LimitReached
from service.encoders.base import Reading
from service.encoders.extractor import Extractor
from service.engines.base import Delta, GenerationRequest, TokenUsage
from service.prompts.templates import Prompt
from service.strategies.calls import RETRY_TEMPERATURE, PromptCall
from service.strategies.reading.answers import AnswerReading, read_answer
from service.strategies.reading.questions import numbers_up_to, parse_numbers, parse_verdict
from service.strategies.reading.text import ends_with
from service.text.grounding import bears
from service.text.words import normal_words

ANSWER_TOKENS: Final = 64
PROSE_TOKENS: Final = 128
SAMPLE_TEMPERATURE: Final = 0.7
RELEVANCE_LABELS: Final = ("true", "false")
WORKER: Final = "encoder"  # in metrics
CLAUSE_WORDS: Final = 8
_COPULA = re.compile(r"\b(?:is|was|are|were|be|been)\b|[:：]|[.!?\n]\s")

RELEVANCE: Final = PromptCall("judge", parse_verdict, labels=RELEVANCE_LABELS)
Verdict = bool | None | LimitReached


# ---- an answer in one call


async def write_answer(
    step: OpenStep,
    prompt: Prompt,
    max_tokens: int = ANSWER_TOKENS,
    *,
    closed: bool = False,
    schema: Mapping[str, Any] | None = None,
    read: Callable[[str, str, bool], AnswerReading] | None = None,
) -> None:
    """Stream a reader's answer and leave it in `step.answer`.

    It is None if there was no text after one retry, and if the reader declined to answer, which is
    flagged `declined`; such a reply is withdrawn completely. So is one that cannot be read, unless
    it ends in words of the passages; a second one is flagged `unread_answer`. So is an example of
    the prompt, which is flagged `prompt_example` if it is repeated; with `closed` it is flagged and
    kept, since an answer from memory is found nowhere else.

    Text that needs cleaning (a label before it, a fence around it) is withdrawn and written again
    in clean form, flagged `repaired`, so that the remaining tokens are the answer. At a limit of
    the question, given in `step.stopped_by`, the answer is the text written so far. An answer that
    is cut is flagged `shortened`. Then further samples `vote`.

    A reply that is held to a `schema` is not shown while it is written; `read` finds the answer in
    it, given its text, the question, and whether it is the last one.
    """
    echoed = False
    for again, temperature in enumerate((0.0, RETRY_TEMPERATURE)):
        stopped = False
        request = chat(
            prompt, max_tokens=max_tokens, temperature=temperature, json_schema=schema,
            logprobs=step.weighed,
        )  # fmt: skip
        try:
            show = discard if schema else None
            await step.write("reader", request, step.as_role, final=step.final, show=show)
        except LimitReached as limit:
            stopped, step.stopped_by = True, limit.stopped_by
        text, question, last = step.written, step.question, stopped or bool(again)
        if read:
            reading = read(text, question, last)
        else:
            reading = read_answer(text, question, parts=step.kind == "merge")
        example = reading.answer is not None and prompt.gives(reading.answer)
        step.answer = reading.answer if closed or not example else None
        echoed = echoed or example
        if reading.declined:
            step.flag("declined")
        elif (closed and example) or (last and echoed and not step.answer):
            step.flag("prompt_example")
        elif reading.answer is None and text and not stopped:
            step.answer = closing_answer(text, question, prompt.shown)
            if again and step.answer is None:
                step.flag("unread_answer")
        await _correct(step, "" if schema else text)
        if step.answer or reading.declined or last:
            break
    await vote(step, prompt, max_tokens)


def closing_answer(text: str, question: str, shown: str) -> str | None:
    """Return what the last sentence of a reply says at its end, if that is short and new and the
    text `shown` to the model contains it: "… so it would be Catania." None if there is nothing.
    """
    *_, clause = _COPULA.split(text.strip())
    clause = clause.strip(" \n\"'“”*.!")
    new = 0 < len(clause.split()) <= CLAUSE_WORDS and not bears(question, clause)
    return clause if new and bears(shown, clause) else None


async def _correct(step: OpenStep, shown: str) -> None:
    """Replace what was `shown` of a reply by the answer, if they differ."""
    if step.cut and step.answer and ends_with(step.written, step.answer):
        step.flag("shortened")
    if step.answer == (shown or None):
        return
    if shown:
        if step.answer:
            step.flag("repaired")
        await step.emit(Withdraw(role=step.as_role, reason="repair"))
    if step.answer:
        await step.say(step.answer)


async def answer_from_memory(step: OpenStep) -> None:
    """Run GEN_CLOSED in an open step, flagged `closed_book`; leaves the answer as `write_answer`
    does.
    """
    step.flag("closed_book")
    prompt = step.inquiry.roles.reader.templates.fill("closed", step.question)
    await write_answer(step, prompt, PROSE_TOKENS, closed=True)


async def vote(step: OpenStep, prompt: Prompt, max_tokens: int) -> None:
    """Run self-consistency (METHODS.md §7.7) if the request asks for `samples`: leave the answer
    that most of `step.answer` and further samples agree on, flagged `outvoted` if it is another
    one; not in a step that is `weighed`, because the probability of its answer decides on it. At a
    limit of the question, the samples made so far vote.
    """
    samples, first = (step.inquiry.request.samples or 1) - 1, step.answer
    if samples < 1 or not step.final or not first or step.weighed:
        return
    requests = [
        chat(prompt, max_tokens=max_tokens, temperature=SAMPLE_TEMPERATURE, seed=seed)
        for seed in range(1, samples + 1)
    ]
    drawn = await gather([partial(_sampled, step, prompt, request) for request in requests])
    limits = [outcome for outcome in drawn if isinstance(outcome, LimitReached)]
    if limits:
        step.stopped_by = limits[0].stopped_by
    chosen = majority([first, *(outcome for outcome in drawn if isinstance(outcome, str))])
    if chosen != first:
        step.flag("outvoted")
        await step.emit(Withdraw(role="answer", reason="repair"))
        await step.say(chosen)


async def _sampled(
    step: OpenStep, prompt: Prompt, request: GenerationRequest
) -> str | LimitReached | None:
    """Return an answer, None if there is none that may vote, or the limit that was reached."""
    try:
        completion = await step.ask("reader", request)
    except LimitReached as limit:
        return limit
    answer = read_answer(completion.text, step.question, parts=step.kind == "merge").answer
    cut = completion.finish == "length"
    return None if answer is None or cut or prompt.gives(answer) else answer


def majority(answers: Sequence[str]) -> str:
    """Return the most frequent answer, the earliest of several, regardless of how its words,
    numbers and dates are written.
    """
    forms = [normal_words(answer) for answer in answers]
    counted = Counter(forms)  # in the order of their first occurrence, which decides among equals
    return answers[forms.index(max(counted, key=counted.__getitem__))]


# ---- readers


def reader_of(step: OpenStep, question: str = "") -> Reader:
    """Return the reader that the settings name, for a question, or for that of the step."""
    extractor, question = step.inquiry.roles.extractor, question or step.question
    if extractor is None:
        return PromptReader(step, question)
    return EncoderReader(step, question, extractor)


async def verify(
    step: OpenStep, passages: Iterable[Passage | RetrievedPassage], question: str = ""
) -> None:
    """Let the encoder of `answers.verify_with`, if it is set, look for the answer of a step in the
    passages from which a language model wrote it, as that to a question, or to that of the step."""
    verifier = step.inquiry.roles.verifier
    if verifier is not None and step.answer and (read := [bare(passage) for passage in passages]):
        await EncoderReader(step, question or step.question, verifier).verify(step.answer, read)


class PromptReader:
    """Asks the language models of the judge and of the reader, for one question of an open step.

    Both readers judge passages (`judge`: whether each helps, None where that is not known, or the
    limit of the question that prevented its judgement) and answer from them (`read`: the answer is
    streamed and left in `step.answer`; None if there is none, flagged `declined` if the passages
    were read). `reads_all`: it is shown every relevant passage, not only the first ones.
    """

    reads_all = False

    def __init__(self, step: OpenStep, question: str) -> None:
        self._step, self._question = step, question

    async def judge(self, passages: Sequence[Passage]) -> list[Verdict]:
        """Judge every passage, all concurrently (METHODS.md §6 #10). A judgement that is no verdict
        is flagged `unread_judgement`."""
        if self._step.inquiry.settings.hanrag.judging == "listwise" and passages:
            return await self._selected(passages)
        verdicts = await gather([partial(self._asked, passage) for passage in passages])
        if unread := verdicts.count(None):
            self._step.unread(unread)
        return verdicts

    async def _selected(self, passages: Sequence[Passage]) -> list[Verdict]:
        """Show the judge all passages at once. A reply that cannot be read judges none of them."""
        judge, count = self._step.inquiry.roles.judge, len(passages)
        call = PromptCall("judge", partial(parse_numbers, most=count), schema=numbers_up_to(count))
        try:
            reply = await call.ask(
                self._step, judge.templates.fill("select", self._question, passages=passages)
            )
        except LimitReached as limit:
            return [limit] * count
        if reply.value is None:
            self._step.unread(count)
            return [None] * count
        return [number in reply.value for number in range(1, count + 1)]

    async def _asked(self, passage: Passage) -> Verdict:
        judge = self._step.inquiry.roles.judge
        prompt = judge.templates.fill("relevance", self._question, passage=passage)
        try:
            return (await RELEVANCE.ask(self._step, prompt)).value
        except LimitReached as limit:
            return limit

    async def read(self, passages: Sequence[Passage]) -> None:
        prompt = self._step.inquiry.roles.reader.templates.fill(
            "answer", self._question, passages=passages
        )
        await write_answer(self._step, prompt)
        await verify(self._step, passages, self._question)


class EncoderReader:
    """Reads all passages of a question in one batch, which counts as one call, judges each, and
    finds the answer or declines. Without passages, the language model answers."""

    reads_all = True

    def __init__(self, step: OpenStep, question: str, extractor: Extractor) -> None:
        self._step, self._question, self._extractor = step, question, extractor
        self._judged: tuple[Sequence[Passage], Reading] | None = None

    async def judge(self, passages: Sequence[Passage]) -> list[Verdict]:
        try:
            reading = await self._run(passages, final=False)
        except LimitReached as limit:
            return [limit] * len(passages)
        self._judged = passages, reading
        return [score >= self._extractor.threshold for score in reading.scores]

    async def read(self, passages: Sequence[Passage]) -> None:
        step = self._step
        if not passages:
            return await PromptReader(step, self._question).read(passages)
        try:
            if self._judged is None:
                self._judged = passages, await self._run(passages, final=step.final)
        except LimitReached as limit:
            step.stopped_by = limit.stopped_by
            return None
        read, reading = self._judged
        if reading.kind == "none" or reading.passage is None:
            return step.flag("declined")
        shown = [(reading.passage, reading.spans)]
        if reading.rival:
            step.flag("conflict")
            shown.append(reading.rival)
        step.places = [
            Place(passage_id=read[at].passage_id, start=start, end=end)
            for at, spans in shown
            for start, end in spans or ((0, len(read[at].text)),)
        ]
        step.confidence = step.probability = reading.score
        return await step.say(reading.answer)

    async def verify(self, answer: str, passages: Sequence[Passage]) -> None:
        """Flag `answer` as unsupported if this reader does not find it in the passages. What it is
        worth is left in `step.confidence`."""
        try:
            reading = await self._run(passages, final=False)
        except LimitReached:
            return
        found = reading.answer
        if reading.kind != "none" and (bears(answer, found) or bears(found, answer)):
            self._step.confidence = reading.score
        else:
            self._step.flag("unsupported")

    async def _run(self, passages: Sequence[Passage], *, final: bool) -> Reading:
        step = self._step
        if not passages:
            return Reading("none", "")
        texts = "\n".join([self._question, *(passage.text for passage in passages)])
        role = replace(step.inquiry.roles.reader, model=None, pooled=True)
        request = GenerationRequest(prompt=texts, max_tokens=1)
        with step.counted(role, request, final=final) as call:
            work = self._extractor.read(self._question, passages)
            reading = await step.timed(work, final=final)
            usage = TokenUsage(reading.pieces, 0)
            call.see(Delta("", finish="stop", usage=usage, worker=WORKER))
        return reading


Reader = PromptReader | EncoderReader

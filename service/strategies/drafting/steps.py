"""The steps beside a draft: a retrieval, the sentence written from it, and the conclusion
(METHODS.md §3.2, lines 8 to 12, and failures).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from service.answer.events import Token
from service.core.errors import LimitReached
from service.engines.base import GenerationRequest
from service.retrieval.base import SearchResult
from service.strategies.base import Outcome
from service.strategies.drafting.chain import (
    ANSWER_TOKENS,
    CONCLUSION,
    FirstSentence,
    cut_overrun,
    is_answered,
    join,
    read_answer,
    unconcluded,
)
from service.strategies.drafting.layout import Layout, shown
from service.strategies.drafting.pieces import write
from service.strategies.drafting.run import DraftingRun
from service.strategies.revelator import parsing
from service.strategies.revelator.roles import RETRY_TEMPERATURE

TOP_K: Final = 3


async def search_and_rewrite(run: DraftingRun, query: str, drafted: str) -> None:
    """Search in the open step, and let the model write the sentence that was `drafted` from the
    passages. An empty query is not sent."""
    run.count_withdrawn()
    await search(run, query)
    await _rewrite(run, drafted)


async def search(run: DraftingRun, query: str) -> None:
    """Search in the open step, and replace the passages of the prompt. An empty query is not sent,
    and finds nothing.
    """
    run.retrievals += 1
    run.layout = replace(run.layout, passages=())
    if query:
        await lay(run, await run.step.search(query, top_k(run), shape="best_fields"))


def top_k(run: DraftingRun) -> int:
    return run.inquiry.request.top_k or TOP_K


async def lay(run: DraftingRun, found: SearchResult) -> None:
    """Replace the passages of the prompt, and emit them."""
    texts = shown([scored.passage.text for scored in found.passages])
    run.seen = run.seen or bool(texts)
    run.layout = await run.fit(replace(run.layout, passages=texts))
    await _show_passages(run, found, run.layout)


async def _show_passages(run: DraftingRun, result: SearchResult, layout: Layout) -> None:
    """Emit as kept what the prompt shows, because nothing judges the passages."""
    room, kept = len(layout.passages), []
    for scored in result.passages:
        has_line = bool(shown([scored.passage.text]))
        kept.append(has_line and room > 0)
        room -= has_line
    reasons = [None if keep else "not shown" for keep in kept]
    await run.step.show_passages(result, kept, reasons)


async def _rewrite(run: DraftingRun, drafted: str) -> None:
    """Run lines 10 and 11. The call ends as soon as its first sentence is final. Without passages
    the `drafted` sentence stays, because the same prompt would produce it again. A sentence that
    copies the demonstrations is flagged; drafting continues after it.
    """
    if run.layout.passages:
        written = await write(run, lambda: FirstSentence(run.splitter))
        sentence = written.kept
    else:
        run.step.flag("no_evidence")
        sentence = drafted
    if run.borrows(sentence):
        run.step.flag("prompt_example")
    run.write(sentence)
    run.step.answer = sentence or None


async def conclude(run: DraftingRun) -> Outcome:
    """Extract the answer from the text, after another call if the text has none."""
    if run.unfounded:
        await run.step.end()
        return Outcome(None, run.stopped_by)
    if run.step.kind != "answer" or not run.step.id:
        await run.open("answer")
    text = await _concluded(run, run.layout.written)
    answer = read_answer(text)
    if not run.options.keep_examples and _is_borrowed(run, answer):
        text = await _concluded(run, unconcluded(run.layout.written), RETRY_TEMPERATURE)
        answer = read_answer(text)
    if answer is None and run.stopped_by == "deadline":
        answer = text or None
    if answer and _declines(run, answer):
        run.step.flag("declined")
        answer = None
    if _is_borrowed(run, answer):
        run.step.flag("prompt_example")
        answer = answer if run.options.keep_examples else None
    if not run.retrievals:
        run.step.flag("closed_book")
    if answer:
        run.step.answer = answer
        await run.step.emit(Token(role=run.as_role, text=answer))
    await run.step.end()
    return Outcome(answer or None, run.stopped_by)


def _declines(run: DraftingRun, answer: str) -> bool:
    return parsing.read_answer(answer, run.question).declined


def _is_borrowed(run: DraftingRun, answer: str | None) -> bool:
    """Whether an answer is copied from a demonstration. The demonstration that declines is no such
    example.
    """
    return answer is not None and not _declines(run, answer) and run.borrows(answer)


async def _concluded(run: DraftingRun, written: str, temperature: float = 0.0) -> str:
    """Return what was written, with its conclusion. Only the question's own answer may use the time
    reserve; a part of a compound question leaves it to the merge."""
    text = cut_overrun(written)
    if is_answered(text):
        return text
    passages = run.layout.passages if run.options.keep_passages else ()
    layout = replace(run.layout, passages=passages, written=join(text, CONCLUSION))
    layout = await run.fit(layout)
    request = GenerationRequest(
        prompt=layout.prompt().text, max_tokens=ANSWER_TOKENS, temperature=temperature
    )
    try:
        final = run.as_role == "answer"
        completion = await run.step.ask("reader", request, final=final)
    except LimitReached as limit:
        run.stopped_by = limit.stopped_by
        return text
    concluded = cut_overrun(join(text, CONCLUSION, completion.text))
    if completion.finish == "length" and parsing.ends_with(concluded, completion.text.strip()):
        run.step.flag("shortened")
    return concluded

"""The sentence of a hit, written anew from the passages (METHODS.md §3.2, lines 10 and 11)."""

from __future__ import annotations

from service.answer.calls import restarted
from service.answer.events import Token, Withdraw
from service.core.concurrency import closing
from service.engines.base import GenerationRequest
from service.strategies.drafting import writing
from service.strategies.dragin.first_sentence import FirstSentence
from service.strategies.dragin.run import Run


async def rewrite(run: Run, drafted: str) -> None:
    """The call ends as soon as its first sentence is certain, and is begun again where a pool's
    worker is lost. Without passages the sentence stands as `drafted`: the same prompt would write
    it again. A sentence out of the demonstrations is flagged; drafting goes on from it."""
    if not run.layout.passages:
        run.step.flag("no_evidence")
        sentence = drafted
    else:
        first = FirstSentence(run.splitter)

        async def void() -> None:
            nonlocal first
            shown, first = bool(first.sentence), FirstSentence(run.splitter)
            if shown:
                await run.step.emit(Withdraw(role="draft", reason="restart"))

        await restarted(lambda: _write(run, first), void)
        sentence = first.sentence
        run.count_sentences(first.text)
    if run.borrows(sentence):
        run.step.flag("prompt_example")
    run.write(sentence)
    run.step.answer = sentence or None


async def _write(run: Run, first: FirstSentence) -> None:
    step, prompt = run.step, run.layout.prompt().text
    request = GenerationRequest(prompt=prompt, max_tokens=run.options.limit, stop=run.stops)
    async with closing(writing(step, request, lambda: first.done)) as pieces:
        async for piece in pieces:
            if text := first.feed(piece):
                await step.emit(Token(role="draft", text=text))
    if not first.done and (text := first.finish()):
        await step.emit(Token(role="draft", text=text))

"""A model that answers whatever a method asks of it, in the form of the prompt, for tests that run
all methods."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from service.answer.calls import texts_of
from service.encoders.base import Tag
from service.encoders.efficientrag import Labelling
from service.engines.base import Delta, GenerationRequest, TokenUsage
from service.engines.signals import ScoreRequest, Scoring
from tests.stubs.signal_engine import DraftScript, SignalEngine
from tests.stubs.word_labelling import WordFilter, WordLabeler
from tests.support.opera import QUESTION
from tests.support.scripted import SHORT_FORMS

HOPS: Final = ("Who composed the opera Norma?", "Where was Vincenzo Bellini born?")
DECLINES: Final = "no answer found"
GUESS: Final = "Palermo"
MEMORY: Final = f"somewhere near {GUESS}"  # the answer without passages
DOUBTED: Final = (GUESS, "hexagon")
_FACT: Final = "Norma was first heard in 1831 and was composed by Vincenzo Bellini."
_TURNS: Final = (
    "Analysis: The composer.\n\nInitial Query: {0}",
    "Intermediate Answer_1: Bellini.\n\nRefined Query: {1}",
    "Intermediate Answer_2: He was born there.\n\nFinal Answer: {2}",
)
# The answer of an example, by the beginning of its prompt.
EXAMPLES: Final = {
    "Where the documents do not hold": "Meridian Spire",
    "Answer the question from what you know": "hexagon",
    "Each question below comes": "Estonia",
    "Answer a question by asking": "Estonia",
    "A question was worked out": "Estonia",
    "Question: ": "Eskerby",
}


def labelling(tags: Mapping[str, Tag] | None = None) -> Labelling:
    """The encoders of EfficientRAG: what tells of an opera leads on, what tells of a birth ends
    (the worked example of METHODS.md §4.7)."""
    tags = tags or {"opera": Tag.CONTINUE, "born": Tag.FINISH}
    marks = {"norma", "opera", "vincenzo", "bellini", "born", "catania"}
    kept = {"city", "in", "which", "was", "born", "bellini", "vincenzo", "catania"}
    return Labelling(WordLabeler(tags, marks), WordFilter(kept))


class Answerer(SignalEngine):
    """Searches for the composer, then for the place where he was born, and says `answer`. Where no
    passage tells it of Catania, it guesses, and is not sure.

    `stuck` calls never write a word; `failures` are raised after a part `at` of a call, each once;
    both go by the number of a call, from 0. `borrows`: its answers are those of the examples in its
    prompts. The engine is `able` to do what all methods need, unless it is said otherwise.
    """

    def __init__(
        self,
        answer: str = "Catania",
        *,
        borrows: bool = False,
        stuck: Collection[int] = (),
        failures: Mapping[int, BaseException] | None = None,
        at: float = 0.5,
        **able: Any,
    ) -> None:
        super().__init__()
        abilities: dict[str, Any] = {"token_signals": True, "templates": None, **able}
        self._capabilities = replace(SHORT_FORMS, **abilities)
        self.answer, self.borrows, self.stuck = answer, borrows, stuck
        self.failures, self.at = dict(failures or {}), at
        self.calls = 0

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        number, self.calls = self.calls, self.calls + 1
        self.requests.append(request)
        if number in self.stuck:
            await asyncio.Event().wait()
        text, failure = self._write(request), self.failures.pop(number, None)
        if request.signals:
            lost = (int(len(text.split()) * self.at), failure) if failure else None
            self.drafts = [DraftScript(text, {"Palermo.": 2.0}, {"Palermo.": 0.5}, failure=lost)]
            async for delta in self._draft(request):
                yield delta
            return
        words = re.findall(r"\s*\S+", text)
        whole = len(words) <= request.max_tokens
        for number, word in enumerate(words[: request.max_tokens]):
            if failure and number >= int(len(words) * self.at):
                raise failure
            chances = [0.05] * 20 if word.strip(" .") in DOUBTED else [0.99, 0.01]
            best = tuple(map(math.log, chances))[: request.logprobs]
            yield Delta(word, best[0] if best else None, best=(best,) if len(best) > 1 else ())
        usage = TokenUsage(sum(map(len, texts_of(request))) // 4, len(words))
        yield Delta("", finish="stop" if whole else "length", usage=usage)

    async def score(self, request: ScoreRequest) -> Scoring:
        number, self.calls = self.calls, self.calls + 1
        if number in self.stuck:
            await asyncio.Event().wait()
        if failure := self.failures.pop(number, None):
            raise failure
        return await super().score(request)

    def _write(self, request: GenerationRequest) -> str:
        text = self.reply(request)
        ends = [place for stop in request.stop if (place := text.find(stop, 1)) > 0]
        return text[: min(ends, default=len(text))]

    def reply(self, request: GenerationRequest) -> str:
        if request.prompt is None:
            told = request.messages[-1].content
            answered = sum(message.role == "assistant" for message in request.messages)
            return self._chat(request.messages[0].content, told, answered)
        head, _, written = request.prompt.rpartition("\nAnswer:")
        if not head:
            return self._search(request.prompt)
        return self._go_on(head, written.split())

    def _said(self, prompt: str) -> str:
        known = (text for begin, text in EXAMPLES.items() if prompt.startswith(begin))
        return next(known, self.answer) if self.borrows else self.answer

    def _go_on(self, head: str, written: list[str]) -> str:
        """Continue the chain of thought that is the newest of the prompt."""
        answer = self._said("Question: ")
        told = f"{_FACT} He was born in Catania. So the answer is {answer}."
        guessed = f"{_FACT} He was born in {GUESS}. So the answer is {GUESS}."
        shown = "Catania" in head.rpartition("Context:")[2]
        for text in (told, guessed) if shown else (guessed, told):
            words = text.split()
            if words[: len(written)] == written:
                return " " + " ".join(words[len(written) :])
        return f" {answer}."

    def _search(self, text: str) -> str:
        """Continue a text of searches in tags."""
        turn = text.count("Hm.")
        if turn < len(HOPS) and "Catania" not in text:
            return f"<think>Hm.</think>\n<search> {HOPS[turn]} </search>"
        return f"<think>I know.</think>\n<answer> {self.answer} </answer>"

    def _chat(self, opening: str, told: str, turn: int) -> str:
        asked, said = sum(question in told for question in HOPS), self._said(opening)
        following = (*HOPS, QUESTION)[asked]
        turn_text = _TURNS[min(turn, 2)].format(*HOPS, self.answer)
        if told.endswith("So the final answer is:"):
            turn_of_questions = said
        elif asked < len(HOPS):
            turn_of_questions = f"Follow up: {following}"
        else:
            turn_of_questions = f"So the final answer is: {said}"
        replies = {
            "Judge whether": "true",
            "Take a question apart": json.dumps({"thought": "", "decomposition": HOPS}),
            "A question was split": f"Vincenzo Bellini, who was born in {self.answer}.",
            "Each question below": json.dumps({"answer": said}),
            "Answer a question by asking": turn_of_questions,
            "Answer the question from what you know": said if self.borrows else MEMORY,
            "Answer the question with the help": turn_text,
            "You answer questions together": turn_text,
            "For the query": f" Bellini came from {GUESS}.",
            "A search engine is used": following,
            "A question is being": (
                following
                if "Write the question to search" in opening
                else "yes"
                if asked == len(HOPS)
                else "no"
            ),
        }
        known = (text for begin, text in replies.items() if opening.startswith(begin))
        return next(known, "Vincenzo Bellini" if asked == 1 and HOPS[0] in told else said)

"""Record what the official FLARE does, for `test_flare.py` to hold ours against.

    git clone https://github.com/jzbjyb/FLARE CHECKOUT
    python -m tests.conformance.flare_official CHECKOUT

Runs the checkout's `QueryAgent.ret_prompt` itself, unchanged, with its settings for 2WikiMultihopQA
but for those of `RUNS`. What stands around it is replaced: the OpenAI API by a made-up model
(`flare_parity.py`), nltk by our sentences, Elasticsearch by a BM25 in memory. The model's words are
drawn by chance from a seed; the record holds them, so that ours reads the same.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from service.text import sentences
from tests.conformance import flare_parity as parity
from tests.conformance.dragin_official import listen, stand_in
from tests.conformance.dragin_parity import (
    WordRetriever,
    load_passages,
    load_questions,
    shown_text,
    words,
)
from tests.stubs.token_engine import Output

RUNS = (
    parity.Parameters(0.8, 0.4, ask=False, max_generation_len=256),
    parity.Parameters(0.8, 0.4, ask=True, max_generation_len=256),
    parity.Parameters(0.4, 0.2, ask=False, max_generation_len=48),
    parity.Parameters(0.6, 0.6, ask=True, max_generation_len=48),
)
EACH = 18  # questions of a run
PASSAGES = load_passages()
RETRIEVER = WordRetriever(PASSAGES)


class Punkt:
    """In the place of nltk's tokenizer of sentences."""

    def span_tokenize(self, text: str) -> Any:
        yield from sentences(text)


class MadeUpModel:
    """Draws what it writes in a state, once. Sentences are words of passages, most of them sure."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)
        self.outputs: dict[parity.State, Output] = {}

    def write(self, state: parity.State) -> Output:
        if state not in self.outputs:
            self.outputs[state] = self._draw(state)
        return self.outputs[state]

    def _draw(self, state: parity.State) -> Output:
        chance = self._chance
        tokens: list[tuple[str, float]] = []
        for _ in range(chance.choice((1, 1, 1, 2))):
            tokens += self._sentence()
        if chance.random() < 0.2 + 0.03 * len(state.written.split()):
            name = " ".join(self._words(chance.choice((1, 2))))
            tokens += self._weigh(f"So the answer is {name}.".split())
            return Output(tokens)
        if chance.random() < 0.04:
            run_on = self._words(70)
            return Output([*tokens, *self._weigh(run_on)], "length")
        return Output(tokens, chance.choice(("stop", "length", "length")))

    def _sentence(self) -> list[tuple[str, float]]:
        if self._chance.random() < 0.08:
            return self._weigh(["No."])
        spoken = self._words(self._chance.randint(4, 20))
        return self._weigh([spoken[0].capitalize(), *spoken[1:-1], f"{spoken[-1]}."])

    def _words(self, count: int) -> list[str]:
        found = [w for w in words(self._chance.choice(PASSAGES).text) if w.isalpha() and len(w) > 2]
        return [self._chance.choice(found) for _ in range(count)]

    def _weigh(self, spoken: Sequence[str]) -> list[tuple[str, float]]:
        chance, doubt = self._chance, self._chance.choice((0.0, 0.15, 0.3))
        return [
            (
                f" {word}",
                round(chance.uniform(0.02, 0.8), 3)
                if chance.random() < doubt
                else round(chance.uniform(0.85, 0.999), 3),
            )
            for word in spoken
        ]


def import_official(checkout: Path) -> Any:
    """The checkout's `openai_api` module among stand-ins."""
    for name in ("nltk", "nltk.tokenize", "tiktoken"):
        stand_in(name)
    stand_in("nltk.tokenize.punkt", PunktSentenceTokenizer=Punkt)
    stand_in("spacy", load=lambda _: None)
    plainly = {"wait_fixed": lambda _: None, "stop_after_attempt": lambda _: None}
    stand_in("tenacity", retry=lambda **_: lambda function: function, **plainly)
    names = (
        "RateLimitError ServiceUnavailableError APIError Timeout APIConnectionError "
        "InvalidRequestError AuthenticationError"
    )
    errors = {name: type(name, (Exception,), {}) for name in names.split()}
    stand_in("openai", error=types.SimpleNamespace(**errors))
    sys.path.insert(0, str(checkout))
    importlib.import_module("src")
    stand_in("src.retriever", BM25=object)
    sets = ("StrategyQA", "WikiMultiHopQA", "WikiAsp", "ASQA")
    stand_in("src.datasets", **dict.fromkeys(sets, object))
    return importlib.import_module("src.openai_api")


class MemorySearch:
    """In the place of its BM25 over Elasticsearch; `short` where it found too few."""

    def __init__(self) -> None:
        self.short = False

    def retrieve(self, queries: Sequence[str], topk: int, **_: Any) -> tuple[Any, Any]:
        import numpy as np

        found = [RETRIEVER.best(query, topk) for query in queries]
        self.short = self.short or any(len(passages) < topk for passages in found)
        padded = [[*passages, *[None] * (topk - len(passages))] for passages in found]
        ids = [[p.passage_id if p else f"_{n}" for n, p in enumerate(ps)] for ps in padded]
        texts = [[shown_text(p) if p else "" for p in ps] for ps in padded]
        return np.array(ids), np.array(texts)


def made_up_api(model: MadeUpModel, question: str) -> Callable[..., Any]:
    """In the place of `openai_api_call`, for completions."""
    import math

    def call(*, prompt: Sequence[str], max_tokens: int, **_: Any) -> dict[str, Any]:
        choices = []
        for each in prompt:
            output = model.write(parity.State.of(each, question)).cut(max_tokens)
            texts = [text for text, _ in output.tokens]
            offsets = [len(each) + len("".join(texts[:n])) for n in range(len(texts))]
            logprobs = {
                "tokens": texts,
                "token_logprobs": [math.log(probability) for _, probability in output.tokens],
                "text_offset": offsets,
            }
            choices.append(
                {"text": "".join(texts), "logprobs": logprobs, "finish_reason": output.finish}
            )
        return {"choices": choices, "model": "made-up"}

    return call


def made_up_chat(prompt: Any, **_: Any) -> Any:
    """In the place of `chatgpt_get_response`: a term is as wide as it is given; a question is that
    of `parity.reply_to`."""
    if isinstance(prompt, str):
        return made_up_chat([prompt])[0]
    replies = []
    for each in prompt:
        asked, _, term = each.rpartition(' "')
        term = term.removesuffix('".')
        replies.append(term.lstrip("*") if "starting with" in asked else parity.reply_to(term))
    return replies


def record(official: Any, question: str, parameters: parity.Parameters, seed: str) -> Any:
    model, search = MadeUpModel(seed), MemorySearch()
    official.openai_api_call = made_up_api(model, question)
    prompt = official.CtxPrompt
    prompt.chatgpt_get_response = staticmethod(made_up_chat)
    prompt.ctx_position, prompt.format_reference_method = "before_case", "searchresultsrank"
    given = asdict(parameters)
    asks = "wholeterm-askquestion" if given["ask"] else "simple"
    agent = official.QueryAgent(
        max_generation_len=given["max_generation_len"],
        retrieval_kwargs={
            "retriever": search, "topk": parity.PASSAGES_SHOWN, "use_ctx": True, "frequency": 64,
            "look_ahead_steps": 64, "look_ahead_pre_retrieval": "first",
            "look_ahead_truncate_at_boundary": "sentence", "look_ahead_mask_method": asks,
            "look_ahead_filter_prob": given["look_ahead_filter_prob"],
            "look_ahead_mask_prob": given["look_ahead_mask_prob"],
            "only_use_look_ahead": True, "truncate_at_boundary": "sentence",
            "final_stop_sym": "\n\n",
        },
    )  # fmt: skip
    heard = Heard(agent)
    case = prompt(case=f"Question: {question}\nAnswer:", question=question)
    _, _, _, (trace,) = agent.ret_prompt([case])
    turns = [
        {"queries": queries, "passages": passages, "sentence": sentence}
        for (queries, passages), (_, sentence) in zip(heard.turns, trace, strict=True)
    ]
    outputs = [parity.row_of(state, output) for state, output in model.outputs.items()]
    listed = listed_of(search, turns, given["max_generation_len"])
    return {"question": question, "listed": listed, "turns": turns, "outputs": outputs}


class Heard:
    """The queries of each sentence, and the passages that the last of them found."""

    def __init__(self, agent: Any) -> None:
        self.turns: list[tuple[list[str], list[str]]] = []
        self._queries: list[str] = []
        self._passages: list[str] = []
        listen(agent, "retrieve", self.searched)
        complete = agent.complete

        def completing(*args: Any, is_lookahead: bool = False, **options: Any) -> Any:
            if not is_lookahead:
                self.turns.append((self._queries, self._passages))
                self._queries, self._passages = [], []
            return complete(*args, is_lookahead=is_lookahead, **options)

        agent.complete = completing

    def searched(self, args: tuple[Any, ...], result: Any) -> None:
        (queries,) = args[0]
        self._queries += [queries] if isinstance(queries, str) else queries
        self._passages = result[0][0].tolist()


def listed_of(search: MemorySearch, turns: Sequence[Any], most: int) -> list[str]:
    """What ours does on purpose otherwise."""
    listed = ["fewer passages than asked for"] if search.short else []
    spoken = sum(len(turn["sentence"].split()) for turn in turns)
    if spoken > most:
        listed.append("one token left, of which the checkout makes two")
    if sum(len(turn["queries"]) for turn in turns) > 20:
        listed.append("more than 20 retrievals")
    return listed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--out", type=Path, default=parity.RECORD)
    given = parser.parse_args()
    official = import_official(given.checkout)
    questions = load_questions()
    runs = []
    for number, parameters in enumerate(RUNS):
        asked = questions[number * EACH : (number + 1) * EACH]
        rows = [record(official, q, parameters, f"{number} {q}") for q in asked]
        runs.append({"parameters": asdict(parameters), "rows": rows})
    body = json.dumps({"runs": runs}, ensure_ascii=False, separators=(",", ":"))
    given.out.write_text(body.replace('{"question"', '\n{"question"') + "\n", encoding="utf-8")
    rows = [row for run in runs for row in run["rows"]]
    print(len(rows), "questions,", sum(bool(row["listed"]) for row in rows), "listed")


if __name__ == "__main__":
    main()

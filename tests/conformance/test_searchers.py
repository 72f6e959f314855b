"""Transcripts of trained searchers against the loops of their own programs, written down here as
they run, on scripted engines: the texts of all calls are equal, byte by byte (METHODS.md §10).

Search-R1 and AutoRefine: `generation.py` of PeterGriffinJin/Search-R1 @54f5bb8, from which that of
AutoRefine differs by its tag. R1-Searcher and SimpleDeepSearcher: `reasoning_pipeline.py` of
RUC-NLPIR/FlashRAG @8bb69ac. ReCall: `re_call.py` of Agent-RL/ReCall @aaf16b3. CoRAG:
`corag_agent.py` and `prompts.py` of microsoft/LMOps @2b7f328.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from service.core.domain import Passage
from service.core.settings import Settings
from service.core.settings.loops import SearcherProtocol
from service.engines.base import Capabilities, GenerationRequest
from tests.support.asking import body_of, passage
from tests.support.scripted import ScriptStep, render

QUESTION = "In which city was the composer of Norma born?"
WORDS = ["Norma", "Bellini", "opera", "Catania", "who", "when", "Verdi", "born"]
SPACE = ["", "\n", " ", "\n\n"]
SEEDS = range(60)

Found = Mapping[str, Sequence[Passage]]
Loop = Callable[[str, Iterator[str], Found], list[str]]


# ---- the loops of the programs


def search_r1(tag: str, longest: int) -> Loop:
    invalid = (
        "\nMy previous action is invalid. If I want to search, I should put the query between "
        "<search> and </search>. If I want to give the final answer, I should put the answer "
        "between <answer> and </answer>. Let me try again.\n"
    )

    def loop(text: str, turns: Iterator[str], found: Found) -> list[str]:
        sent = []
        for number in range(longest + 1):
            sent.append(text)
            turn = next(turns)
            for end in ("</search>", "</answer>"):
                if end in turn:
                    turn = turn.split(end)[0] + end
                    break
            text += turn
            action = re.search(r"<(search|answer)>(.*?)</\1>", turn, re.DOTALL)
            if not action:
                text += invalid
            elif action[1] == "answer" or number == longest:
                break
            else:
                docs = "".join(
                    f"Doc {n + 1}(Title: {p.title}) {p.text}\n"
                    for n, p in enumerate(found[action[2].strip()])
                )
                text += f"\n\n<{tag}>{docs.strip()}</{tag}>\n\n"
        return sent

    return loop


def flashrag(begin: str, end: str, docs_begin: str, docs_end: str, answer: str | None) -> Loop:
    def loop(text: str, turns: Iterator[str], found: Found) -> list[str]:
        sent = []
        while True:
            sent.append(text)
            turn = next(turns)
            stops = [stop for stop in (end, answer) if stop and stop in turn]
            if stops:
                turn = min((turn.split(stop)[0] + stop for stop in stops), key=len)
            text += turn.strip()
            if (turn.endswith(answer)) if answer else ("\\boxed" in turn):
                return sent
            if begin not in turn or not turn.endswith(end):
                return sent
            query = turn.split(begin)[-1].removesuffix(end).strip()
            docs = "".join(
                f"({n + 1})Title: {p.title} Text: {p.text}\n" for n, p in enumerate(found[query])
            )
            text += f"\n\n{docs_begin}\n{docs}\n{docs_end}\n\n"

    return loop


def recall(text: str, turns: Iterator[str], found: Found) -> list[str]:
    sent = []
    for _ in range(5):
        sent.append(text)
        turn = next(turns).split("<|im_end|>")[0]
        text += turn + "<|im_end|>"
        calls = re.findall(r"<tool_call>(.*?)</tool_call>", turn, re.DOTALL)
        if not calls or turn.count("<tool_call>") != turn.count("</tool_call>"):
            break
        text += "\n<|im_start|>user\n"
        for call in map(str.strip, calls):
            hits = found[json.loads(call)["arguments"]["query"]]
            answer = "".join(f"{p.title}\n{p.text}\n\n" for p in hits).strip()
            result = f"result: \n{answer}\n".strip() if answer else ""
            text += f"<tool_response>{call}\n{result}\n</tool_response>\n"
        text += "<|im_end|>\n<|im_start|>assistant\n<think>"
    return sent


def corag(question: str, turns: Iterator[str], found: Found) -> list[str]:
    sent: list[str] = []
    past: list[tuple[str, str]] = []

    def say(message: str) -> str:
        sent.append(message)
        return next(turns)

    def history() -> str:
        lines = ""
        for n, (query, answer) in enumerate(past):
            lines += f"Intermediate query {n + 1}: {query}\nIntermediate answer {n + 1}: {answer}\n"
        return lines.strip() or "Nothing yet"

    calls = 0
    while len(past) < 3 and calls < 12:
        calls += 1
        query = say(f"ASK {history()} FOR {question}").strip()
        if query.startswith('"') and query.endswith('"'):
            query = query[1:-1]
        if query.startswith("Intermediate query"):
            query = re.sub(r"^Intermediate query \d+: ", "", query)
        if query in [asked for asked, _ in past]:
            continue
        docs = "".join(f"{p.title}\n{p.text}\n\n" for p in [*found[query]][::-1])
        past.append((query, say(f"READ {docs.strip()} FOR {query}")))
    docs = "".join(
        f"Doc {n}: {p.title}\n{p.text}\n\n" for n, p in enumerate([*found[question]][::-1])
    )
    say(f"JOIN {docs.strip()} AND {history()} FOR {question}")
    return sent


LOOPS: dict[SearcherProtocol, Loop] = {
    "search_r1": search_r1("information", 4),
    "autorefine": search_r1("documents", 5),
    "r1_searcher": flashrag(
        "<|begin_of_query|>", "<|end_of_query|>", "<|begin_of_documents|>",
        "<|end_of_documents|>", "</answer>",
    ),
    "simple_deep_searcher": flashrag(
        "<|begin_search_query|>", "<|end_search_query|>", "<|begin_search_result|>",
        "<|end_search_result|>", None,
    ),
    "recall": recall,
    "corag": corag,
}  # fmt: skip


# ---- random models


def written(name: SearcherProtocol, chance: random.Random, queries: Sequence[str]) -> list[str]:
    """What a model writes: queries, sometimes a turn without one, and an answer."""
    words = lambda most: " ".join(chance.choices(WORDS, k=chance.randint(1, most)))  # noqa: E731
    if name == "corag":
        turns = []
        for query in queries:
            form = chance.choice(["{}", ' "{}" ', "Intermediate query 2: {}"])
            turns += [form.format(query), words(4)]
            if chance.random() < 0.3:
                turns.append(query)  # a repeated sub-query
        return [*turns, "Catania"] if len(queries) == 3 else []
    turns = []
    for query in queries:
        if name in ("search_r1", "autorefine") and chance.random() < 0.2:
            turns.append(f"{words(3)}{chance.choice(SPACE)} {words(2)}")
        turn = f"{chance.choice(SPACE)}<think>{words(5)}</think>{chance.choice(SPACE)}"
        match name:
            case "search_r1" | "autorefine":
                turn += f"<search> {query} </search>"
            case "r1_searcher":
                turn += f"<|begin_of_query|> {query} <|end_of_query|>"
            case "simple_deep_searcher":
                turn += f"<|begin_search_query|>{query}<|end_search_query|>"
            case _:
                call = json.dumps({"name": "wikipedia_search", "arguments": {"query": query}})
                turn += f"<tool_call>{chance.choice(SPACE)}{call}\n</tool_call>"
                if chance.random() < 0.3:
                    turn += f"\n{turn[turn.index('<tool_call>') :]}"
        turns.append(turn + chance.choice(SPACE))
    boxed = name in ("simple_deep_searcher", "recall")
    answer = f"\\boxed{{{words(2)}}}" if boxed else f"<answer> {words(2)} </answer>"
    turns.append(f"{chance.choice(SPACE)}{words(4)} {answer} {words(2)}")
    return [*turns, "never read"]


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("seed", SEEDS)
async def test_the_texts_of_all_calls_are_those_of_the_program(
    name: SearcherProtocol, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(f"{name} {seed}")
    queries = [
        " ".join(chance.choices(WORDS, k=3)) + f" {n}"
        for n in range(3 if name == "corag" else chance.randint(0, 3))
    ]
    found: dict[str, Sequence[Passage]] = {
        query: [
            passage(f"p{n}.{m}", " ".join(chance.choices(WORDS, k=6)), chance.choice(WORDS))
            for m in range(chance.randint(0, 3))
        ]
        for n, query in enumerate([*queries, QUESTION])
    }
    turns = written(name, chance, queries)
    sent = await asked(name, turns, found, tmp_path)
    begin = QUESTION if name == "corag" else sent[0]
    assert sent == LOOPS[name](begin, iter(turns), found)
    if name != "corag":  # each prompt extends the one before, so that a prefix cache serves it
        assert all(later.startswith(earlier) for earlier, later in pairwise(sent))


async def asked(
    name: SearcherProtocol, turns: Sequence[str], found: Found, folder: Path
) -> list[str]:
    """Ask the service, and return the texts of its calls."""
    files = {
        "searcher": "Search, then answer.\n$question\n",
        "searcher_corag_query": "ASK $history FOR $question",
        "searcher_corag_answer": "READ $passages FOR $query",
        "searcher_corag_final": "JOIN $passages AND $history FOR $question",
    }
    for role, text in files.items():
        (folder / f"{role}.txt").write_text(text, encoding="utf-8")
    sent: list[str] = []
    left = iter(turns)

    def reply(request: GenerationRequest) -> str:
        sent.append(request.messages[0].content if request.prompt is None else render(request))
        text = next(left)
        ends = [place for stop in request.stop if (place := text.find(stop)) >= 0]
        return text[: min(ends, default=len(text))]

    await body_of(
        [ScriptStep(reply, times=None)], found, QUESTION, capabilities=Capabilities(raw=True),
        settings=Settings.model_validate({"searcher": {"protocol": name}}), prompts=str(folder),
        route="single", loop="searcher", last_resort=False,
    )  # fmt: skip
    return sent

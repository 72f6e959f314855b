"""The worlds of the pipelines that make chats: who composed a march, and where were they born?"""

from __future__ import annotations

import re
from typing import Any

from service.core.domain import Passage
from service.workshop.facts.splits import is_held_out
from tests.unit.workshop.synthesis.rounds import Line, World
from tests.unit.workshop.synthesis.towns import (
    TOWNS,
    composer_of,
    documents_of,
    hops_of,
    mayor_of,
    work_of,
)

KINDS = ("garbage", "truncated", "limited", "contradiction")


def chain_of(town: int) -> dict[str, Any]:
    """The chain with its passages inside the hops."""
    line = dict(hops_of(town))
    passages = line.pop("passages")
    hops = [{**hop, "passage": passages[n]} for n, hop in enumerate(line["hops"])]
    return {**line, "hops": hops}


async def find(query: str, top_k: int, retriever: str) -> tuple[Passage, ...]:
    """What the query names, after what it also might have meant."""
    found = [documents_of(TOWNS.index(word))[0] for word in re.findall(r"\w+", query)
             if word in TOWNS]  # fmt: skip
    for town, name in enumerate(TOWNS):
        if f"March of {name}" in query:
            found.append(work_of(town))
        if mayor_of(town) in query:
            found += [work_of((town + 1) % len(TOWNS)), composer_of(town)]
    return tuple(p for p in found if not is_held_out(p.title))[:top_k]


def autorag_teacher(asked: str) -> str:
    if "Model Analysis:" in asked:
        composer = re.search(r"Model Analysis: .*composed by ([\w ]+)", asked)
        march = re.search(r"March of \w+", asked)
        assert march
        return f"birthplace of {composer[1]}" if composer else f"composer of the {march[0]}"
    if asked.endswith("Final Answer:"):
        born = re.search(r"\nIntermediate Answer_\d: .* was born in (\w+)\.\n\n\Z", asked[:-13])
        return born[1] if born else "unknown"
    if asked.endswith("\nAnalysis:"):
        return "I need to find the composer of the march, and then where the composer was born."
    return _note(asked)


def _note(asked: str) -> str:
    newest = asked.rpartition("Retrieved Document_")[2]
    march = re.search(r"March of \w+", asked)
    assert march
    composer = re.search(rf"The {march[0]} was composed by ([\w ]+)\.", asked)
    born = composer and re.search(rf"{composer[1]} was born in \w+\.", newest)
    if born:
        return born[0]
    if composer and composer[0] in newest:
        return f"{composer[0]} However, the birthplace is missing."
    return "There is no information on it, so I need to find it by another query."


def contradicted_dialogue(good: str) -> str:
    if good.startswith(("birthplace", "composer")):
        return "weather in Atlantis"
    return "Somebody else was born in Atlantis." if good.endswith(".") else "Atlantis"


def hanrag_lines(first_town: int) -> list[Line]:
    """Chains, and between them questions of the other three routes."""
    lines: list[Line] = []
    for town, name in list(enumerate(TOWNS))[first_town:]:
        first, *_ = documents_of(town)
        passage = {"id": first.passage_id, "title": first.title, "text": first.text}
        founded = f"When was {name} founded?"
        lines += [
            chain_of(town),
            {"id": f"single-{town}", "question": founded, "answer": str(1200 + town),
             "hops": [{"question": founded, "answer": str(1200 + town), "passage": passage}]},
            {"id": f"direct-{town}", "question": f"Where does {name} keep its cups?",
             "choices": {"A": "shelf"}, "answer": "A"},
            {"id": f"compound-{town}", "route": "compound",
             "question": f"When was {name} founded, and who is its mayor?",
             "parts": [[str(1200 + town)], [mayor_of(town)]],
             "sub_questions": [founded, f"Who is the mayor of {name}?"],
             "provenance": {"titles": [name], "answer_title": name}},
        ]  # fmt: skip
    return lines


def hanrag_teacher(asked: str) -> str:
    if entity := re.search(r"Entity: (.*)", asked):
        return f"Who is the composer of the {entity[1]}?"
    question, _, document = asked.partition("\nDoc: ")
    name = next((word for word in re.findall(r"\w+", question) if word in TOWNS), "")
    for word, told in (
        ("founded", f"{name} was founded"),
        ("composer", f"{name} was composed"),
        ("owner", "is owned by"),
    ):
        if word in question:
            return "true" if told in document else "false"
    who = re.search(r"Where was (.*) born\?", question)
    assert who
    return "true" if f"{who[1]} was born" in document else "false"


def contradicted_label(good: str) -> str:
    return {"true": "false", "false": "true"}.get(good, good.replace("composer", "owner"))


CHATS = (
    World("autorag", [chain_of(town) for town in range(len(TOWNS))], autorag_teacher, find,
          KINDS, "###\n###", contradicted_dialogue),
    World("hanrag", hanrag_lines(3), hanrag_teacher, find, KINDS, contradict=contradicted_label),
)  # fmt: skip

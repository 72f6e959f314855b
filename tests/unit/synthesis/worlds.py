"""Small worlds that a pipeline is run over, each with a teacher who knows all of it."""

from __future__ import annotations

import json
import re
from typing import Any

from service.domain import Passage
from service.synthesis.contract import Search
from tests.unit.synthesis.recording import Line, World

# Towns of a made-up country: some are held out, by the hash of their names.
FIRST = ("Ald", "Bern", "Carl", "Dun", "Elm", "Far", "Gos", "Hol", "Ist")
LAST = ("hausen", "bridge", "mouth", "wick", "ford", "stead", "berg", "dale")
TOWNS = [f"{first}{last}" for first in FIRST for last in LAST]
NAMES = ("Ada", "Bela", "Cyra", "Dora", "Egon", "Fritz", "Gita", "Hans", "Ilse", "Jan")


def mayor_of(town: int) -> str:
    return f"{NAMES[town % 10]} {NAMES[town // 10]}son"


def documents_of(town: int) -> list[Passage]:
    name = TOWNS[town]
    facts = [
        f"{name} was founded in {1200 + town}.",
        f"The mayor of {name} is {mayor_of(town)}.",
        f"{name} lies at {300 + town} metres.",
    ]
    titles = [name, f"Mayor of {name}", f"Geography of {name}"]
    every = [
        Passage(f"{name}-{n}", title, text)
        for n, (title, text) in enumerate(zip(titles, facts, strict=True))
    ]
    return every[: 1 + town % 3]


def compound_lines() -> list[Line]:
    return [
        {
            "entity": TOWNS[town],
            "documents": [
                {"id": d.passage_id, "title": d.title, "text": d.text} for d in documents_of(town)
            ],
        }
        for town in range(len(TOWNS))
    ]


def compound_teacher(asked: str) -> str:
    """A simple question on a document, or the simple ones joined."""
    if parts := re.findall(r"Simple Question\d: (.*)\?\n", asked):
        return f"{', and '.join(parts)}?"
    text = asked.partition("Doc: ")[2].partition("\n")[0]
    for pattern, question in (
        (r"(\w+) was founded in (\d+)", "When was {} founded"),
        (r"The mayor of (\w+) is (.*)\.", "Who is the mayor of {}"),
        (r"(\w+) lies at (\d+ metres)", "How high does {} lie"),
    ):
        if found := re.search(pattern, text):
            return json.dumps({"Question": f"{question.format(found[1])}?", "Answer": found[2]})
    raise AssertionError(asked)


def work_of(town: int) -> Passage:
    return Passage(f"w{town}", f"March of {TOWNS[town]}",
                   f"The March of {TOWNS[town]} was composed by {mayor_of(town)}.")  # fmt: skip


def composer_of(town: int) -> Passage:
    return Passage(f"c{town}", mayor_of(town), f"{mayor_of(town)} was born in {TOWNS[-1 - town]}.")


def hops_of(town: int) -> Line:
    composer, birthplace = mayor_of(town), TOWNS[-1 - town]
    return {
        "id": f"2hop__{town}",
        "question": f"Where was the composer of the March of {TOWNS[town]} born?",
        "answer": birthplace,
        "passages": [
            {"id": p.passage_id, "title": p.title, "text": p.text}
            for p in (work_of(town), composer_of(town))
        ],
        "hops": [
            {"question": f"March of {TOWNS[town]} >> composer", "answer": composer,
             "passage_id": f"w{town}"},
            {"question": "Where was #1 born?", "answer": birthplace, "passage_id": f"c{town}"},
        ],
    }  # fmt: skip


def efficientrag_teacher(asked: str) -> str:
    if "<Known Info>" in asked:
        composer = re.search(r"composed by (.*)", asked)
        assert composer
        return json.dumps({"filtered_query": f"Where was {composer[1]} born"})
    if "<Document>" in asked:
        return _words_of(asked)
    first, second = re.findall(r"Sub-question \d: (.*)", asked)
    composer = re.search(r"composed by (.*)\.", asked)
    birthplace = re.search(r"was born in (.*)\.", asked)
    assert composer
    assert birthplace
    parts: dict[str, Any] = {
        "1": {"sub_question": f"{first}?", "answer": composer[1], "dependency": []},
        "2": {"sub_question": second, "answer": birthplace[1], "dependency": ["1"]},
    }
    return json.dumps({"question": "", "decomposed_questions": parts})


def _words_of(asked: str) -> str:
    document = re.search(r"<Document>: .*?: (.*)\.\n", asked)
    assert document
    extracted = re.sub(r"\b(?:The|was)\b ?", "", document[1])
    return f"It tells. {json.dumps({'extracted_words': extracted})}"


async def two_works(search: Search) -> tuple[Passage, ...]:
    """Whatever is searched: the passages of the first towns, as far as they are not held out."""
    return (work_of(0), composer_of(0), work_of(1), composer_of(1), work_of(2))


async def nothing(search: Search) -> tuple[Passage, ...]:
    return ()


WORLDS = (
    World("compound", compound_lines(), compound_teacher, nothing),
    World("efficientrag", [hops_of(n) for n in range(len(TOWNS))], efficientrag_teacher, two_works),
)

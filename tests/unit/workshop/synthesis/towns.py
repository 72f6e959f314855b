"""A made-up country: its towns, their mayors, who also compose, and what passages say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.core.domain import Passage

Line = Mapping[str, Any]

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

"""Held-out questions: each is answered by a held-out passage, and by no other of that name."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from service.evaluation.datasets import load_dataset
from service.workshop.facts import heldout
from service.workshop.facts.heldout import KINDS, heldout_questions
from service.workshop.facts.splits import is_held_out

FIRST = ("Anna", "Berta", "Clara", "Doris", "Edith", "Frida", "Greta", "Helga")


def names(first: str, *, held_out: bool) -> str:
    """A name of two words on the wanted side of the split."""
    letters = ("".join("aeiou"[int(d) % 5] + "n" for d in str(n)) for n in count())
    return next(n for n in (f"{first} K{x}" for x in letters) if is_held_out(n) is held_out)


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """Eight films on the training side, their directors on the held-out side, and two namesakes."""
    rows = []
    for number, first in enumerate(FIRST):
        director, film = names(first, held_out=True), names(f"The {first}", held_out=False)
        town = ("Oslo", "Bergen")[number % 2]
        rows += [
            (film, f"{film} is a 19{number + 30} Norwegian drama film directed by {director}."),
            (director, f"{director} (born 2 May 19{number + 10} in {town}) was a Norwegian film "
                       f"director. {director} was the daughter of {first} Holm."),
        ]  # fmt: skip
    rows += [(f"{rows[1][0]} (singer)", f"{rows[1][0]} (born 1 June 1950) is a Danish singer.")]
    for source in ("2wikimultihopqa", "musique", "squad"):
        (tmp_path / source).mkdir()
        lines = [
            json.dumps({"id": f"{source}-{n}", "title": title, "text": text})
            for n, (title, text) in enumerate(rows if source == "2wikimultihopqa" else [])
        ]
        (tmp_path / source / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def passages(data: Path) -> dict[str, tuple[str, str]]:
    lines = (data / "2wikimultihopqa" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["id"]: (row["title"], row["text"]) for row in map(json.loads, lines)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_stands_in_a_held_out_passage(kind: str, films: Path) -> None:
    rows = heldout_questions(films, 6, kinds=[kind])
    known = passages(films)
    assert rows
    for row in rows:
        *earlier, last = (known[each] for each in row["supporting_passage_ids"])
        assert is_held_out(last[0])
        if kind == "bridge":
            assert not is_held_out(earlier[0][0])
            assert last[0] in earlier[0][1], "the first passage names the second's subject"
        for answer in row.get("parts", [row.get("answer")] if kind != "comparison" else []):
            assert any(answer in text for _, text in [*earlier, last])


def test_of_namesakes_nothing_is_asked(films: Path) -> None:
    namesake = passages(films)["2wikimultihopqa-1"][0]
    rows = heldout_questions(films, 12)
    assert {row["kind"] for row in rows} == set(KINDS)
    assert not [row["question"] for row in rows if namesake in row["question"]]


def test_the_same_seed_writes_the_same_file(
    films: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        monkeypatch.setattr("sys.argv", ["heldout", str(file), "--data", str(films), "--n", "3"])
        heldout.main()
    assert files[0].read_bytes() == files[1].read_bytes()
    asked = load_dataset(files[0])
    assert len(asked) == 3 * len(KINDS)
    assert {question.route for question in asked} == {"single", "compound", "complex"}


def test_questions_to_tune_with_are_of_nothing_held_out(films: Path) -> None:
    texts = passages(films)
    rows = heldout_questions(films, 3, kinds=("single", "comparison"), tune=True)
    asked = [texts[name] for row in rows for name in row["supporting_passage_ids"]]
    assert asked
    assert not any(is_held_out(title) for title, _ in asked)

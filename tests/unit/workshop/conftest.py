"""Small passages in the style of the corpora; the names decide nothing but the tests."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from service.workshop.facts.corpora import Paragraph
from tests.conftest import unavailable

ROWS = (
    ("Harbour Lights", "Harbour Lights is a 1931 British drama film directed by Ada Verney and "
     "starring Colin Marsh."),
    ("Ada Verney", "Ada Verney (born 3 May 1890 in Leeds, England) was a British film director."),
    ("The Long Field", "The Long Field is a 1954 American comedy film directed by Otto Brandt."),
    ("Otto Brandt", "Otto Brandt (12 June 1902, Vienna – 4 March 1971, Berlin) was a German film "
     "director. He was the son of Karl Brandt and Marie Holm. He married Lena Koch."),
    ("Milton Cross", "Milton Cross is a village in Essex, England. Its population was 1,204."),
    ("Green Valley Press", "Green Valley Press was founded in 1921 and is based in Bristol."),
    ("Silver Moon (song)", "\"Silver Moon\" is a song by American singer Nell Ward."),
    ("Nell Ward", "Nell Ward (born July 7, 1960) is an American singer. She attended Yale."),
)  # fmt: skip


@pytest.fixture
def passages() -> list[Paragraph]:
    return [Paragraph(f"p-{n}", title, text, "made") for n, (title, text) in enumerate(ROWS)]


QUESTIONS: dict[str, list[dict[str, object]]] = {
    "musique": [
        {
            "id": f"2hop-{n}",
            "question": f"Where was the director of Harbour Lights {n} born?",
            "answer": "Leeds, England",
            "hops": [
                {"question": "Harbour Lights >> director", "answer": "Ada Verney",
                 "passage_id": "p-0"},
                {"question": "Where was #1 born ?", "answer": "Leeds, England",
                 "passage_id": "p-1"},
            ],
            "supporting_passage_ids": ["p-0", "p-1"],
        }
        for n in range(12)
    ],
    "nq_open": [{"question": f"who wrote song number {n}", "answer": ["x"]} for n in range(12)],
    "webquestions": [{"question": f"what is thing {n}?", "answers": ["x"]} for n in range(12)],
    "strategyqa": [
        {"question": f"Can {n} swim?", "answer": True, "facts": [],
         "decomposition": ["What can swim?", "Is #1 here?"]}
        for n in range(12)
    ],
    "commonsenseqa": [
        {"question": f"Where do you keep {n} cups?", "choices": {"A": "shelf"}, "answer": "A"}
        for n in range(12)
    ],
    "squad": [
        {"id": f"s-{n}", "question": f"Who directed film {n}?", "answers": ["Ada Verney"],
         "supporting_passage_ids": ["p-0"]}
        for n in range(12)
    ],
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder in the shape of the development data, a few lines a file."""
    extra = [(f"{title} {n}", text) for n in range(40) for title, text in ROWS]
    for source in ("2wikimultihopqa", "musique", "squad"):
        rows = [*ROWS, *extra] if source == "2wikimultihopqa" else list(ROWS[:2])
        lines = [
            json.dumps({"id": f"p-{n}" if source == "2wikimultihopqa" else f"{source}-{n}",
                        "title": title, "text": text})
            for n, (title, text) in enumerate(rows)
        ]  # fmt: skip
        (tmp_path / source).mkdir()
        (tmp_path / source / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for source, questions in QUESTIONS.items():
        folder = tmp_path / source
        folder.mkdir(exist_ok=True)
        name = "dev.jsonl" if source == "nq_open" else "questions.jsonl"
        text = "\n".join(json.dumps(question) for question in questions)
        (folder / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="session")
def train_extra() -> None:
    """What the recipes need beyond the extra `local`."""
    missing = [name for name in ("accelerate", "peft", "trl") if find_spec(name) is None]
    if missing:
        unavailable(", ".join(missing), "pip install '.[train]'")

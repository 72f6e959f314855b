"""Input for two pipelines, each with a teacher who knows all of it."""

from __future__ import annotations

import json
import re
from typing import Any

from service.core.domain import Passage
from tests.unit.workshop.synthesis.towns import TOWNS, Line, documents_of


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


async def nothing(query: str, top_k: int, retriever: str) -> tuple[Passage, ...]:
    return ()

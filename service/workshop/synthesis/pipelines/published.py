"""Lines of MuSiQue, 2WikiMultihopQA and HotpotQA as they are published: their gold passages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from service.core.domain import Passage
from service.workshop.synthesis.contract import BadLine
from service.workshop.synthesis.reading import list_of, passage_of

_ANSWER_OF = re.compile(r"#(\d+)")


def id_of(row: Mapping[str, Any], default: str) -> str:
    return str(row.get("id") or row.get("_id") or default)


def filled(question: str, answers: Sequence[str]) -> str:
    """`#k` as the k-th answer, where there is one."""

    def answer(match: re.Match[str]) -> str:
        number = int(match[1])
        return answers[number - 1] if 0 < number <= len(answers) else match[0]

    return _ANSWER_OF.sub(answer, question)


def musique_hops(row: Mapping[str, Any], default_id: str) -> list[tuple[dict[str, Any], Passage]]:
    """The steps of `question_decomposition`, each with its paragraph. Raises BadLine."""
    given = [paragraph for paragraph in list_of(row, "paragraphs") if isinstance(paragraph, dict)]
    paragraphs = {p["idx"]: p for p in given if isinstance(p.get("idx"), int)}
    hops = []
    for hop in list_of(row, "question_decomposition"):
        if not isinstance(hop, dict):
            raise BadLine("a hop is no object")
        index = hop.get("paragraph_support_idx")
        if not isinstance(index, int) or index not in paragraphs:
            raise BadLine("a hop without its paragraph")
        text = paragraphs[index].get("paragraph_text")
        name = f"{id_of(row, default_id)}-{index:02d}"
        hops.append((hop, passage_of({**paragraphs[index], "id": name, "text": text})))
    return hops


def supporting_passages(row: Mapping[str, Any], default_id: str) -> list[Passage]:
    """Paragraphs of `context` that `supporting_facts` name; an id is the sample's and the
    paragraph's place. Raises BadLine."""
    try:
        gold = {title for title, _ in list_of(row, "supporting_facts")}
        paragraphs = [(title, list(sentences)) for title, sentences in list_of(row, "context")]
    except (TypeError, ValueError):
        raise BadLine("`context` or `supporting_facts` of another shape") from None
    sample = id_of(row, default_id)
    return [
        passage_of({"id": f"{sample}-{n:02d}", "title": title, "text": _joined(sentences)})
        for n, (title, sentences) in enumerate(paragraphs)
        if title in gold
    ]


def _joined(sentences: Sequence[object]) -> str:
    return " ".join(str(sentence).strip() for sentence in sentences)

"""A router's baseline: a logistic regression on what a question shows without being understood."""

from __future__ import annotations

from collections.abc import Sequence

import torch

QUESTION_WORDS = ("who", "what", "when", "where", "which", "how", "why", "is", "are", "did", "and")


def surface(question: str) -> list[float]:
    """What a question shows without being understood: length, case, marks, its first word."""
    words = question.split()
    first = words[0].lower() if words else ""
    return [
        len(words) / 10,
        len(question) / 50,
        float(question.endswith("?")),
        sum(c.isupper() for c in question) / 5,
        sum(c.isdigit() for c in question) / 4,
        question.count(",") + question.count("'"),
        float(" and " in question.lower()),
        float(" or " in question.lower()),
        1.0,
        *(float(first == word) for word in QUESTION_WORDS),
    ]  # fmt: skip


def surface_baseline(
    train: Sequence[tuple[str, str]], test: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """(given, gold) of a logistic regression on surface features."""
    names = sorted({label for _, label in train})
    inputs = torch.tensor([surface(question) for question, _ in train])
    labels = torch.tensor([names.index(label) for _, label in train])
    torch.manual_seed(0)
    layer = torch.nn.Linear(inputs.shape[1], len(names))
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(layer(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.inference_mode():
        given = layer(torch.tensor([surface(question) for question, _ in test])).argmax(-1)
    return [(names[int(g)], gold) for g, (_, gold) in zip(given, test, strict=True)]

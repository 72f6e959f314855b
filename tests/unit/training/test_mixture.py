"""The roles' examples: whole passages cut alike, judgements true to their passages."""

from __future__ import annotations

import random
from pathlib import Path

from service.training import roles
from service.training.corpora import Passage
from service.training.mixture import EARLY_SHARES, RAW, SHARES, Tasks
from service.training.tokenizer import Segment


def test_every_share_is_a_role(data: Path) -> None:
    tasks = Tasks(data, random.Random(0))
    for role in (SHARES.keys() | EARLY_SHARES.keys()) - {"copying"}:
        made = getattr(tasks, role)()
        assert all(isinstance(piece, Segment) is (role in RAW) for piece in made)


def test_where_a_cut_begins_does_not_tell_gold_from_others() -> None:
    rng = random.Random(0)
    words = [f"w{n:03d}" for n in range(60)]
    passage = Passage("p", "Title", " ".join(words), "made")
    gold = [roles.cut(passage, rng.choice(words[:30]), 12, rng) for _ in range(300)]
    others = [roles.cut(passage, "", 12, rng) for _ in range(300)]
    begun = [sum(text.text.startswith("w000") for text in texts) for texts in (gold, others)]
    assert abs(begun[0] - begun[1]) < 60
    assert all(len(text.text.split()) <= 12 for text in gold + others)


def test_a_cut_keeps_the_answer() -> None:
    rng = random.Random(0)
    words = [f"w{n:03d}" for n in range(60)]
    passage = Passage("p", "Title", " ".join(words), "made")
    for place in range(60):
        assert words[place] in roles.cut(passage, words[place], 12, rng).text


def test_judgements_are_half_true_and_name_the_asked(data: Path) -> None:
    tasks = Tasks(data, random.Random(0))
    found = [tasks.relevance()[0] for _ in range(120)]
    true = [turn for turn in found if turn.assistant == "true"]
    assert 40 < len(true) < 80
    assert {turn.assistant for turn in found} == {"true", "false"}

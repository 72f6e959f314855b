"""How sure the embedded model is of a draft's facts, with their passage in the prompt and without.

The drafts are held-out: real names, wordings that never trained. The entropies are those of the
fact's own tokens when the true sentence is read; what is written greedily is scored apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from service.prompting.quoting import quote
from service.training.corpora import Passage
from service.training.drafts import asked, context, shipped_demonstrations, statement
from service.training.scoring import Heldout, Scorer, squeezed
from service.training.synthesis import Hop, Synthesised
from service.training.tokenizer import Segment, encode, encode_raw

LONGEST = 64


class Sureness(NamedTuple):
    """Mean entropy of a fact's tokens, in nats: passage shown, other passages shown, none."""

    given: float
    others: float
    bare: float


class Drafted:
    """Draws held-out drafts and asks a model for them."""

    def __init__(self, scorer: Scorer, held: Heldout) -> None:
        self.scorer, self.held, self.rng = scorer, held, held.rng

    def _prompt(self, question: str, passages: Sequence[Passage]) -> str:
        block = context([passage.text for passage in passages]) if passages else ""
        return shipped_demonstrations() + block + asked(question)

    def sureness(self) -> Sureness:
        """Of one single fact."""
        hop = self.held.maker.single(0).hops[0]
        near = self.held.distractors(hop.question, hop.fact, 3)
        shown = [hop.fact.passage, *near[:2]]
        self.rng.shuffle(shown)
        return Sureness(*(self._entropy(hop, passages) for passages in (shown, near, [])))

    def _entropy(self, hop: Hop, passages: Sequence[Passage]) -> float:
        said = statement(hop)
        place = said.rindex(quote(hop.answer))
        prompt = f"{self._prompt(hop.question, passages)} {said[:place].rstrip()}"
        fact = encode(self.scorer.tokenizer, quote(hop.answer))
        ids, _ = encode_raw(self.scorer.tokenizer, [Segment(prompt, False)])
        values = self.scorer.entropies([*ids[:-1], *fact], len(fact))
        return sum(values) / len(values)

    def right(self, made: Synthesised) -> bool:
        """Whether the greedy draft, its passages and distractors shown, ends in the answer."""
        gold = [hop.fact.passage for hop in made.hops]
        near = self.held.distractors(made.question, made.hops[0].fact, 6)
        others = [passage for passage in near if passage not in gold]
        shown = [*gold, *others[: max(0, 3 - len(gold))]]
        self.rng.shuffle(shown)
        prompt = Segment(self._prompt(made.question, shown), False)
        ids, _ = encode_raw(self.scorer.tokenizer, [prompt])
        text = self.scorer.continued(ids[:-1], LONGEST)
        found = re.search(r"the answer is (.*?)\.?$", text.split("\n")[0])
        return found is not None and squeezed(found.group(1)) == squeezed(made.answer)


def auc(low: Sequence[float], high: Sequence[float]) -> float:
    """Chance that a value of `high` is above one of `low`, ties counted half: 0.5 tells nothing."""
    wins = sum((b > a) + 0.5 * (b == a) for a in low for b in high)
    return wins / (len(low) * len(high))


def histogram(rows: Sequence[Sureness], width: int = 40) -> str:
    """Two columns of bars, facts by their entropy in nats: passage shown, and withheld."""
    edges = [0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 9]
    lines = ["nats      passage shown" + " " * (width - 12) + "withheld"]
    start = 0.0
    for edge in edges:
        given = sum(start <= row.given < edge for row in rows)
        bare = sum(start <= row.bare < edge for row in rows)
        bars = ["#" * round(width * count / len(rows)) for count in (given, bare)]
        lines.append(f"{start:4.2f}-{edge:4.2f} {bars[0]:<{width}} {bars[1]}".rstrip())
        start = edge
    return "\n".join(lines)

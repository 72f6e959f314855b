"""Questions that owners of documents ask: names that nobody knows, "our", hours, prices, codes.

Each must be looked up, however ordinary its words are. Wordings stand in
`owners.toml`; the last two of `single` and of `complex` never train.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from service.workshop.facts.names import syllable_name
from service.workshop.facts.wordings import join_questions, read_toml, wordings

TEXTS: Final[dict[str, list[str]]] = read_toml(Path(__file__).with_suffix(".toml"))


class Owners:
    """Draws questions on documents of somebody's own; `unseen` takes the wordings kept back."""

    def __init__(self, rng: random.Random, *, unseen: bool = False) -> None:
        self.rng, self.unseen = rng, unseen

    def single(self) -> str:
        return self._filled("single")

    def complex(self) -> str:
        return self._filled("complex")

    def parts(self) -> list[str]:
        """Two questions that are typed as one."""
        return [self.single(), self.single()]

    def compound(self) -> str:
        return join_questions(self.parts(), self.rng)

    def _filled(self, kind: str) -> str:
        wording = self.rng.choice(wordings(TEXTS[kind], unseen=self.unseen))
        return wording.format_map(
            {
                "place": self._one("places"), "place2": self._one("places"),
                "thing": self._one("things"), "part": self._one("parts"),
                "role": self._one("roles"), "day": self._one("days"),
                "feature": self._one("features"), "org": self._firm(), "org2": self._firm(),
                "person": self._person(), "person2": self._person(), "beer": self._beer(),
                "beer2": self._beer(), "product": self._name(), "drug": self._name(),
                "town": self._name(), "model": self._model(), "code": self._code(),
                "number": str(self.rng.randint(2, 9999)),
                "version": f"{self.rng.randint(0, 9)}.{self.rng.randint(0, 20)}",
            }
        )  # fmt: skip

    def _one(self, kind: str) -> str:
        return self.rng.choice(TEXTS[kind])

    def _name(self) -> str:
        return syllable_name(self.rng)

    def _firm(self) -> str:
        tail = f" {self.rng.choice(TEXTS['firms'])}" if self.rng.random() < 0.85 else " & Sons"
        return self._name() + tail

    def _person(self) -> str:
        return f"{self._name()} {self._name()}" if self.rng.random() < 0.7 else self._name()

    def _beer(self) -> str:
        return f"{self._name()} {self.rng.choice(TEXTS['beers'])}"

    def _model(self) -> str:
        letters = "".join(self.rng.choices("ABCDEHKLMPRSTVXZ", k=self.rng.randint(1, 3)))
        return f"{letters}{self.rng.choice(('', '-'))}{self.rng.randint(2, 9900)}"

    def _code(self) -> str:
        lead = self.rng.choice(("E", "E-", "F", "ERR", "0x", "", "H", "P0"))
        return f"{lead}{self.rng.randint(1, 999)}"

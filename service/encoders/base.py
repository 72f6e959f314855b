"""What the encoders return: labels of passages (METHODS.md §4.2), routes, and answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, NamedTuple

from service.core.domain import RouteName


class Tag(IntEnum):
    """The tag of a passage. Its value is the row of the tag head (METHODS.md §4.3).

    With two tags a passage that would be FINISH is CONTINUE.
    """

    CONTINUE = 0
    TERMINATE = 1
    FINISH = 2


@dataclass(frozen=True, slots=True)
class PassageLabel:
    """The label of a passage. `info` are its marked words in their order, or "" if none is marked.
    `probability` is that of the tag, among the tags of the checkpoint."""

    tag: Tag
    info: str
    probability: float


ROUTES: Final[tuple[RouteName, ...]] = ("direct", "single", "compound", "complex")


class Routed(NamedTuple):
    """The most likely route and its calibrated probability."""

    route: RouteName
    probability: float


AnswerKind = Literal["span", "yes", "no", "none"]


class Reading(NamedTuple):
    """What an encoder found in passages.

    `kind` is `none` if no passage has the answer; then `answer` is the best place that was
    declined, or "". `passage` is the index of the passage and `spans` the places of the answer in
    its text, in characters; yes and no have none. `score` is the probability that the answer is
    right, and `scores` that of each passage's best answer; both are unknown where a language model
    reads. `rival` are the passage and the places of an answer that is as good and says otherwise;
    then `answer` names both. `pieces` is the number of word pieces that an encoder read.
    """

    kind: AnswerKind
    answer: str
    passage: int | None = None
    spans: tuple[tuple[int, int], ...] = ()
    score: float | None = None
    scores: tuple[float, ...] = ()
    pieces: int = 0
    rival: tuple[int, tuple[tuple[int, int], ...]] | None = None

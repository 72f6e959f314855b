"""The encoders' protocols: labeler and filter (METHODS.md §4.2), classifier of routes, and
extractor of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, NamedTuple, Protocol

from service.core.domain import Passage, RouteName


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


class Labeler(Protocol):
    """LABEL: tags passages, and marks the words that are useful for a query.

    `tags` is 2 or 3. Passages have the form of `service.encoders.inputs.passage_text`. `problem`
    says why the labeler cannot run here and what to do, or is None if no problem is known; reading
    it loads nothing. `label` raises LoopUnavailable for such a problem, including one that is found
    when the model is loaded, and EngineFailure if the model fails.
    """

    @property
    def tags(self) -> int: ...

    def problem(self) -> str | None: ...

    async def label(self, query: str, passages: Sequence[str]) -> list[PassageLabel]:
        """Return a label for each passage, in their order."""


class QueryFilter(Protocol):
    """FILTER: chooses the words of a query and of infos that form the next query.

    It takes the query and the infos separately: if the input is too long, the infos are shortened
    and never the query (METHODS.md §6 #27). `problem` and the errors are those of a labeler.
    """

    def problem(self) -> str | None: ...

    async def filter(self, query: str, infos: Sequence[str]) -> str:
        """Return the chosen words in the order of the input, or "" if none is chosen."""


class Labelling(NamedTuple):
    """The labeler and the filter of the loop EfficientRAG."""

    labeler: Labeler
    filter: QueryFilter


ROUTES: Final[tuple[RouteName, ...]] = ("direct", "single", "compound", "complex")


class Routed(NamedTuple):
    """The most likely route and its calibrated probability."""

    route: RouteName
    probability: float


class Classifier(Protocol):
    """Classifies questions by route. A classifier that cannot run here cannot be opened."""

    async def classify(self, question: str, allowed: Sequence[RouteName] = ROUTES) -> Routed:
        """Return the most likely of the allowed routes, and its probability among them. Raises
        RevelatorError if the classification failed."""


AnswerKind = Literal["span", "yes", "no", "none"]


class Reading(NamedTuple):
    """What a reader found in passages.

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


class Extractor(Protocol):
    """Finds the answer to a question in passages. What is less probable than `threshold` is
    declined."""

    @property
    def threshold(self) -> float: ...

    async def read(self, question: str, passages: Sequence[Passage]) -> Reading:
        """Return the best answer in the passages, which are read together. Raises RevelatorError if
        that failed."""

"""The encoders' protocols: labeler and filter (METHODS.md §4.2), and classifier of routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

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
    """`info`: the marked words of the passage, in its order, "" where none is; `probability` of
    the tag among those of the checkpoint."""

    tag: Tag
    info: str
    probability: float


class Labeler(Protocol):
    """LABEL: tags passages and marks their useful words, in view of a query.

    `tags` is 2 or 3. A passage is given as `service.encoders.inputs.passage_text` makes it.
    `problem` says why it cannot work here and what to do, None where nothing is known against it,
    and loads nothing. What is found out later is said then too; `label` and `filter` raise it as
    `LoopUnavailable`, and `EngineFailure` where a model fails.
    """

    @property
    def tags(self) -> int: ...

    def problem(self) -> str | None: ...

    async def label(self, query: str, passages: Sequence[str]) -> list[PassageLabel]:
        """Return a label for each passage, in their order."""


class QueryFilter(Protocol):
    """FILTER: the words of a query and of the infos that make the next query.

    It takes the query and the infos apart, not the sentence made of them: where that is too long
    the infos are shortened, never the query (METHODS.md §6 #27). `problem` is a labeler's.
    """

    def problem(self) -> str | None: ...

    async def filter(self, query: str, infos: Sequence[str]) -> str:
        """Return the words that are kept, in the order of the sentence, or "" if none is."""


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
    """Classifies questions by route. One that cannot run here cannot be opened."""

    async def classify(self, question: str, allowed: Sequence[RouteName] = ROUTES) -> Routed:
        """Return the most likely of the allowed routes, and its probability among them. Raises
        RevelatorError if it failed this time."""

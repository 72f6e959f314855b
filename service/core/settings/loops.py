"""Settings of the routes and of the loops."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from service.core.domain import AutoragMode, RouteName
from service.core.settings.base import CommaList, Section


class RoutesSettings(Section):
    """How the route of a question is chosen (METHODS.md §1.2)."""

    allowed: Annotated[list[RouteName], NoDecode, CommaList] = Field(
        ["direct", "single", "compound", "complex"], description="Routes that may be used."
    )
    classifier: Path | Literal["none", "shipped"] | None = Field(
        None,
        description="Classifier that chooses the route: a folder written by `revelator train "
        "router`, `shipped`, or `none` (a call to the language model, which also chooses where a "
        "classifier named here gives less than 0.7). Default: `shipped` for the shipped model, "
        "which has no say then, `none` for all others.",
    )
    escalate: Literal["never", "auto", "always"] = Field(
        "never",
        description="When a question on the route `single` continues on the route `complex` "
        "because no relevant passage or no answer was found. `never`: not at all. `auto`: only if "
        "the service chose the route. `always`: also if the request chose it.",
    )
    escalate_below: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Escalate not only if no relevant passage or no answer was found, but also if "
        "the geometric mean of the answer's token probabilities is below this value, for engines "
        "that report them.",
    )


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, int) else value


def _rising(depths: list[int]) -> list[int]:
    if sorted(set(depths)) != depths:
        raise ValueError("each number must be larger than the one before it")
    return depths


Depths = Annotated[
    list[Annotated[int, Field(ge=1, le=100)]],
    Field(min_length=1, max_length=10),
    AfterValidator(_rising),
    NoDecode,
    CommaList,
    BeforeValidator(_listed),
]


class HanragSettings(Section):
    """HANRAG (METHODS.md §1.2, §1.3)."""

    judging: Literal["pointwise", "listwise"] | None = Field(
        None,
        description="How the relevance of passages is judged: by a call of the judge's model for "
        "each (`pointwise`, as in the paper), or by one call that shows them all (`listwise`). The "
        "encoder that reads judges in place of both, if there is one (`roles.reader.encoder`). "
        "Default: `pointwise`.",
    )
    fetch_k: Depths = Field(
        [10, 30, 50],
        description="Number of passages per search that are judged. Of several numbers, the "
        "next one counts where no passage so far helps, as long as the limits of the question "
        "allow; an encoder that reads judges the first number only. With 30 as the first, more "
        "questions of several hops are answered, at three times the calls, or, with "
        '`judging = "listwise"`, at the same.',
    )


class AutoragSettings(Section):
    """Auto-RAG (METHODS.md §2)."""

    mode: AutoragMode | None = Field(
        None,
        description="`tuned`: for models trained on Auto-RAG's dialogue format, such as its "
        "published checkpoints. `few_shot`: the prompt shows the format by examples. Default: as "
        "the reader's model was trained, if its folder says so (as that of the shipped model "
        "does), else `few_shot`.",
    )


class EfficientragSettings(Section):
    """EfficientRAG (METHODS.md §4)."""

    location: Path | None = Field(
        None,
        description="Folder with the checkpoints `labeler` and `filter`, as `revelator train` "
        "writes them. Default: the shipped ones.",
    )


class DraginSettings(Section):
    """DRAGIN (METHODS.md §3)."""

    profile: Literal["official", "paper", "in_context", "service"] = Field(
        "service",
        description="`official`: as in the official code. `paper`: as the paper prints it, token "
        "by token. `in_context`: as in the code, with attention within the "
        "whole generation. `service`: with the service's further changes (METHODS.md §3.2).",
    )
    threshold: float = Field(1.0, gt=0, description="θ, the threshold of the trigger.")
    max_tokens: int = Field(
        128,
        ge=8,
        le=4096,
        description="L, the maximum number of tokens of the "
        "answer; also of the baselines that draft (METHODS.md §7).",
    )
    tagger: Literal["stopwords", "hanta", "spacy"] = Field(
        "stopwords",
        description="How content words are identified: `stopwords` (by a list of stop words), "
        "`hanta` (by HanTa's part-of-speech tags) or `spacy` (by those of spaCy's model "
        "en_core_web_sm, which then also finds the sentences). The last two need the extra "
        "`tagger`. With `spacy`, the profile `official` reproduced the official code's "
        "trajectories exactly.",
    )


SearcherProtocol = Literal[
    "search_r1", "autorefine", "r1_searcher", "simple_deep_searcher", "recall", "corag"
]


class SearcherSettings(Section):
    """Models that were trained to search (METHODS.md §10)."""

    protocol: SearcherProtocol | None = Field(
        None,
        description="Tags and form of results that the reader's model was trained on, for the loop "
        "`searcher`. Default: as the name of the model tells.",
    )


class BaselinesSettings(Section):
    """The baselines that gate or draft (METHODS.md §7)."""

    flare_query: Literal["masked", "questions"] = Field(
        "masked",
        description="Query of the loop `flare`: the sentence without its improbable tokens "
        "(`masked`), or questions, written by the reader's model, that those tokens answer "
        "(`questions`).",
    )

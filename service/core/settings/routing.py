"""Settings of the router, and of escalation from a simple route."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from service.core.settings.base import Section


class RouterSettings(Section):
    """How the route of a question is chosen.

    `model`: by a call to the Revelator (METHODS.md §1.2). `classifier`: by a small encoder, with a
    call to the Revelator if it is not confident.
    """

    kind: Literal["model", "classifier"] | None = Field(
        None,
        description="What chooses the route: `model` (a call to the language model) or "
        "`classifier` (a small encoder). Default: the classifier for the shipped model, `model` "
        "for all others.",
    )
    confidence: float = Field(
        0.7,
        ge=0,
        le=1,
        description="Minimum probability of the classifier's choice. If it is lower, the model "
        "chooses. Applies only if `kind` is set to `classifier`.",
    )
    location: Path | None = Field(
        None,
        description="Folder written by `revelator train router`. Default: the shipped classifier.",
    )


class EscalationSettings(Section):
    """When a question on route `single` whose own check fails continues as `complex`."""

    when: Literal["never", "auto", "always"] = Field(
        "never",
        description="When a question on the route `single` continues on the route `complex` "
        "because no relevant passage or no answer was found. `never`: not at all. `auto`: only if "
        "the service chose the route. `always`: also if the request chose it.",
    )
    below: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Escalate not only if no relevant passage or no answer was found, but also if "
        "the geometric mean of the answer's token probabilities is below this value, for engines "
        "that report them.",
    )

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
        description="What chooses the route. Default: the classifier for the shipped model, the "
        "model itself for every other one.",
    )
    confidence: float = Field(
        0.7,
        ge=0,
        le=1,
        description="Minimum probability for the classifier's choice. Below it, the model chooses, "
        "if `kind` is `classifier`.",
    )
    location: Path | None = Field(
        None,
        description="Folder written by `revelator train router`. Default: the shipped classifier.",
    )


class EscalationSettings(Section):
    """When a question on route `single` whose own check fails continues as `complex`."""

    when: Literal["never", "auto", "always"] = Field(
        "never",
        description="`auto`: if the service chose the route. `always`: also if the caller "
        "chose it.",
    )
    below: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Escalate not only if no passage was found relevant, but also if the geometric "
        "mean of the answer's token probabilities is below this value, for engines that report "
        "them.",
    )

"""Settings of the router, and of escalation from a simple route."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from service.core.settings.base import Section


class RouterSettings(Section):
    """What chooses the route of a question: a call to the Revelator (METHODS.md §1.2), or a small
    encoder, with a call to the Revelator if it is not confident."""

    encoder: Path | Literal["none", "shipped"] | None = Field(
        None,
        description="Classifier that chooses the route: a folder written by `revelator train "
        "router`, `shipped`, or `none` (a call to the language model, which also chooses where a "
        "classifier named here gives less than 0.7). Default: `shipped` for the shipped model, "
        "which has no say then, `none` for all others.",
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

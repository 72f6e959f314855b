"""Who chooses the route of a question, and when a simple route that fails is given up."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from service.settings.base import Section


class RouterSettings(Section):
    """`model`: a call to the Revelator (METHODS.md §1.2). `classifier`: a small encoder, which
    leaves to that call what it is not sure of."""

    kind: Literal["model", "classifier"] = "model"
    confidence: float = Field(
        0.7, ge=0, le=1, description="Below this probability the classifier abstains."
    )
    location: Path | None = Field(
        None, description="Folder that `revelator train router` wrote; absent: the shipped one."
    )
    threads: int = Field(1, ge=1, description="Of the classifier; a question is short.")


class EscalationSettings(Section):
    """A question on route `single` that fails its own check goes on as `complex`."""

    when: Literal["never", "auto", "always"] = Field(
        "never", description="`auto`: where the service chose the route; `always`: the caller too."
    )
    no_evidence: bool = Field(True, description="No passage was found relevant.")
    below: float = Field(
        0.0,
        ge=0,
        le=1,
        description="The mean probability of the answer's tokens (geometric) is below this, where "
        "the engine gives it; 0 asks for none.",
    )

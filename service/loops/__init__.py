"""The loops: one method per file or folder."""

from __future__ import annotations

from service.calling import Roles
from service.domain import LoopName
from service.errors import LoopUnavailable
from service.loops.anrag import Anrag
from service.loops.autorag import Autorag
from service.loops.base import Demanding, Loop
from service.loops.dragin import Dragin
from service.loops.efficientrag import EfficientRag
from service.settings import Settings

LOOPS: dict[str, Loop] = {
    loop.name: loop for loop in (Anrag(), Autorag(), Dragin(), EfficientRag())
}


def get_loop(name: LoopName) -> Loop:
    """Return the loop with this name. Raises LoopUnavailable, which says what is missing."""
    if name not in LOOPS:
        built = ", ".join(sorted(LOOPS))
        raise LoopUnavailable(
            f"the loop {name!r} is not implemented in this version; available: {built}"
        )
    return LOOPS[name]


def check_loop(name: LoopName, roles: Roles, settings: Settings) -> None:
    """Raise LoopUnavailable if this deployment cannot run the loop."""
    loop = get_loop(name)
    if isinstance(loop, Demanding) and (lacking := loop.missing(roles, settings)):
        raise LoopUnavailable(f"the loop {name!r} cannot run in this deployment: {lacking}")

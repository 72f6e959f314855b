"""The loops: one file a method."""

from __future__ import annotations

from service.domain import LoopName
from service.errors import LoopUnavailable
from service.loops.anrag import Anrag
from service.loops.autorag import Autorag
from service.loops.base import Loop

LOOPS: dict[str, Loop] = {loop.name: loop for loop in (Anrag(), Autorag())}


def get_loop(name: LoopName) -> Loop:
    """The loop of a name. Raises LoopUnavailable, saying what is missing."""
    if name not in LOOPS:
        built = ", ".join(sorted(LOOPS))
        raise LoopUnavailable(f"the loop {name!r} is not built in this version; it has {built}")
    return LOOPS[name]

"""The names of evaluated methods: a route, a loop, or a loop under a route, each with optional
request fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

from service.core.domain import RequestLoop, RequestRoute
from service.core.errors import InvalidRequest
from service.strategies.registry import LOOPS

ALL: Final = "all"
_ROUTES: Final[dict[str, RequestRoute]] = {name: name for name in get_args(RequestRoute)}
_LOOPS: Final[dict[str, RequestLoop]] = {
    name: name for name in get_args(RequestLoop) if name in LOOPS
}
VARIANT: Final = "@"
_FIELDS: Final[Mapping[str, Callable[[str], Any]]] = {
    "top_k": int, "max_steps": int, "samples": int, "retriever": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """A method of answering.

    `name` is its name on the command line and in the rows. `fields` are request fields, which
    override those that all methods share.
    """

    name: str
    route: RequestRoute
    loop: RequestLoop = "default"
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def last_resort(self) -> bool | None:
        """Only the service itself, not a route or a loop that is named, may end in another
        method."""
        return None if self.route == "auto" and self.loop == "default" else False


def known_methods() -> list[str]:
    """Return the names of the routes, followed by those of the loops."""
    return [*_ROUTES, *sorted(_LOOPS)]


def method_of(name: str) -> Method:
    """Return the method with this name. Raises InvalidRequest with the known names.

    `auto` or another route is this route with the default loop. The name of a loop sends every
    question to it without routing. `ROUTE/LOOP` sets both, as in a request. Each name may be
    followed by one or more `@FIELD=VALUE`, as in `one_retrieval@top_k=10`.
    """
    plain, *given = name.split(VARIANT)
    if given:
        fields = dict(_field_of(name, one) for one in given)
        return replace(method_of(plain), name=name, fields=fields)
    route, slash, loop = name.partition("/")
    if slash:
        if route in _ROUTES and route != "direct" and loop in _LOOPS:
            return Method(name, _ROUTES[route], _LOOPS[loop])
    elif route in _ROUTES:
        return Method(route, _ROUTES[route])
    elif name in _LOOPS:
        return Method(name, "complex", _LOOPS[name])
    raise InvalidRequest(
        f"method {name!r} is unknown; known: {', '.join(known_methods())}, and ROUTE/LOOP for a "
        f"loop under a route, each also with @FIELD=VALUE; and {ALL}, only without it"
    )


def _field_of(name: str, given: str) -> tuple[str, Any]:
    field, equals, value = given.partition("=")
    try:
        if equals and field in _FIELDS:
            return field, _FIELDS[field](value)
    except ValueError:
        pass
    raise InvalidRequest(
        f"method {name!r}: {given!r} is not FIELD=VALUE; the fields are {', '.join(_FIELDS)}, of "
        "which all but retriever are whole numbers"
    )


def methods_of(names: Sequence[str]) -> list[Method]:
    """Return the methods of comma-separated names, without duplicates. Raises InvalidRequest."""
    given = _split(names)
    if not given:
        raise InvalidRequest(f"no method is named; known: {', '.join(known_methods())}")
    wanted = [method for name in given for method in (known_methods() if name == ALL else [name])]
    return list({method.name: method for method in map(method_of, wanted)}.values())


def named_methods(names: Sequence[str]) -> set[str]:
    """Return the names of the methods that are named themselves, not only by `all`."""
    return {method_of(name).name for name in _split(names) if name != ALL}


def _split(names: Sequence[str]) -> list[str]:
    return [name.strip() for part in names for name in part.split(",") if name.strip()]

"""The trace of a call to a server, as header fields (W3C Trace Context)."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

NONE: Final[Mapping[str, str]] = MappingProxyType({})
FIELDS: Final = ("traceparent", "tracestate")

_outgoing: ContextVar[Mapping[str, str]] = ContextVar("trace_context", default=NONE)


def outgoing() -> Mapping[str, str]:
    """Return the header fields for a call made now; none without a trace."""
    return _outgoing.get()


def send_with(fields: Mapping[str, str]) -> None:
    """Set the header fields of the calls that this task makes from now on."""
    _outgoing.set(fields)

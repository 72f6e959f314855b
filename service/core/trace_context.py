"""The trace of a call to a server, as header fields (W3C Trace Context)."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

NONE: Final[Mapping[str, str]] = MappingProxyType({})
FIELDS: Final = ("traceparent", "tracestate")

# of the calls that this task makes; none without a trace
OUTGOING: Final[ContextVar[Mapping[str, str]]] = ContextVar("trace_context", default=NONE)

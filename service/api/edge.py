"""What the app of one deployment consists of, and every request finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from fastapi import Request

if TYPE_CHECKING:
    from service.api.access import TenantAccess
    from service.api.admission import Admission, Drain, Turns
    from service.api.feedback import Answered
    from service.api.health import Readiness
    from service.api.recordings import Recordings
    from service.api.wire import ErrorForm
    from service.core.settings import Settings
    from service.core.supervision import Supervisor
    from service.runtime import Runtime


class Edge(Protocol):
    """The state of the app; what follows `error_forms` exists while the app runs.

    `error_forms` has the forms of errors that are not problems, by the beginnings of their paths;
    `tasks` outlive a request.
    """

    settings: Settings
    turns: Turns
    access: TenantAccess
    error_forms: Mapping[str, ErrorForm]
    runtime: Runtime
    drain: Drain
    admission: Admission
    readiness: Readiness
    tasks: Supervisor
    recordings: Recordings
    answered: Answered


def edge_of(request: Request) -> Edge:
    edge: Edge = request.app.state
    return edge

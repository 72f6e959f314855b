"""A signal call as its caller sees it; importing it imports no torch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from service.core.errors import EngineFailure
from service.engines.batching.jobs import Item, SignalJob
from service.engines.signals import (
    AttentionRow,
    ContextRows,
    SignalDelta,
    SignalRequest,
    Span,
)


class LocalSignalCall:
    """Iterates over a job's items. What it has told is all it knows: rows are read from the job."""

    def __init__(
        self,
        request: SignalRequest,
        job: SignalJob,
        receive: Callable[[SignalJob], Awaitable[Item]],
    ) -> None:
        self._request = request
        self._job = job
        self._receive = receive
        self._spans: list[Span] = []

    async def __aiter__(self) -> AsyncIterator[SignalDelta]:
        while not self._job.cancelled:
            item = await self._receive(self._job)
            if isinstance(item, BaseException):
                raise item
            if not isinstance(item, SignalDelta):
                raise EngineFailure(f"a call with signals received {type(item).__name__}")
            self._spans += [token.span for token in item.tokens]
            yield item
            if item.finish is not None:
                return

    async def rows(self, tokens: Sequence[int]) -> ContextRows:
        self._job.cancelled = True
        if not self._request.attention:
            raise ValueError("the request did not ask for attention")
        if any(not 0 <= token < len(self._spans) for token in tokens):
            raise ValueError(
                f"attention rows of tokens {list(tokens)} are not available; {len(self._spans)} "
                "tokens were received"
            )
        start, first = len(self._request.prompt), len(self._job.spans)
        draft = [(start + begin, start + end) for begin, end in self._spans]
        rows = [
            AttentionRow(first + token, tuple(self._job.rows[token].tolist())) for token in tokens
        ]
        return ContextRows((*self._job.spans, *draft), tuple(rows))

"""The bodies that the plugin's routes take and give."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.engines.signals import (
    AttentionRow,
    ContextRows,
    ScoreRequest,
    Scoring,
    SignalDelta,
    SignalRequest,
)

Text = Annotated[str, Field(max_length=4_000_000)]
SpanBody = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DraftBody(Body):
    prompt: Text
    max_tokens: int = Field(ge=1)
    stop: list[Annotated[str, Field(min_length=1)]] = Field([], max_length=16)
    attention: bool = False
    model: str | None = None

    def to_request(self) -> SignalRequest:
        stop = tuple(self.stop)
        return SignalRequest(self.prompt, self.max_tokens, stop, self.attention, self.model)


class RowsBody(Body):
    tokens: list[int] = Field(max_length=4096)


class ScoreItem(Body):
    text: Text | None = None
    token_ids: list[int] = []
    bos: bool = False
    entropies: bool = True
    row_spans: list[SpanBody] = []

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.token_ids) and self.text is not None:
            raise ValueError("set either text or token_ids, not both")
        return self

    def to_request(self, model: str | None) -> ScoreRequest:
        ids, spans = tuple(self.token_ids), tuple(self.row_spans)
        text = "" if self.text is None and not ids else self.text
        return ScoreRequest(text, ids, self.bos, self.entropies, spans, model)


class ScoreBody(Body):
    items: list[ScoreItem] = Field(min_length=1, max_length=256)
    model: str | None = None


class SpansBody(Body):
    text: Text


def delta_body(delta: SignalDelta) -> dict[str, Any]:
    tokens = [
        {
            "id": token.id,
            "text": token.text,
            "span": token.span,
            "entropy": token.entropy,
            "logprob": token.logprob,
            "updates": [(u.key, u.maximum, u.later) for u in token.updates],
        }
        for token in delta.tokens
    ]
    body: dict[str, Any] = {"tokens": tokens}
    if delta.finish is not None and delta.usage is not None:
        usage = (delta.usage.prompt_tokens, delta.usage.completion_tokens)
        body |= {"finish": delta.finish, "usage": usage}
    return body


def rows_body(rows: ContextRows) -> dict[str, Any]:
    return {"spans": rows.spans, "rows": [_row(row) for row in rows.rows]}


def scoring_body(scoring: Scoring) -> dict[str, Any]:
    tokens = [
        (t.id, t.span, t.entropy, t.logprob, t.attention_max, t.attention_max_later)
        for t in scoring.tokens
    ]
    rows = [_row(row) for row in scoring.rows]
    return {"tokens": tokens, "rows": rows, "prompt_tokens": scoring.usage.prompt_tokens}


def _row(row: AttentionRow) -> dict[str, Any]:
    return {"token": row.token, "weights": row.weights}

"""What the graph of `service.workshop.compilation` takes and gives.

Taken: `ids` and `positions` (rows, tokens) in int64; `ends` (rows,) in int32, the last filled
position of each row after the pass; `total`, the largest of them plus 1; `wanted` (n,) in int64,
places in the flattened (rows * tokens) whose logits are computed; the cache, per layer (rows,
kv_heads, room, size), written in place. Given: `logits` (n, vocabulary); `queries` (rows, tokens,
heads * size) of the last layer, rotated as the keys in its cache are.
"""

from __future__ import annotations

IDS = "ids"
POSITIONS = "positions"
ENDS = "ends"
TOTAL = "total"
WANTED = "wanted"
LOGITS = "logits"
QUERIES = "queries"


def past(layer: int, kind: str) -> str:
    return f"past.{layer}.{kind}"


def present(layer: int, kind: str) -> str:
    return f"present.{layer}.{kind}"

"""What the inputs of a model's matrices look like, so that rounding can spare what matters.

The sum of x·xᵀ over the inputs x of each matrix, on texts that the model is meant for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from service.core.errors import InvalidRequest
from service.engines.encoding import PromptEncoder
from service.workshop.facts.rows import read_rows
from service.workshop.recipes.chats import encode_chat

ROWS: Final = 64
LONGEST: Final = 1024  # tokens of a row

Array = NDArray[np.float32]


def read_moments(source: Path, rows: Path) -> dict[str, Array]:
    """For each matrix of the layers, by its name, the second moments [in, in] of its inputs.

    `rows` is a file as `synthesize` writes it, of which ROWS are taken evenly. Raises
    InvalidRequest where it holds none.
    """
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    every = list(read_rows(rows))
    if not every:
        raise InvalidRequest(f"{rows} holds no rows to calibrate on")
    encoder = PromptEncoder(AutoTokenizer.from_pretrained(source, local_files_only=True))
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.eval()
    found: dict[str, Any] = {}

    def watch(name: str) -> Any:
        def add(module: Any, inputs: Any) -> None:
            x = inputs[0].reshape(-1, inputs[0].shape[-1])
            found[name] = found.get(name, 0) + x.T @ x

        return add

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and ".layers." in name:
            module.register_forward_pre_hook(watch(name))
    with torch.inference_mode():
        for row in evenly(every, ROWS):
            for encoded in encode_chat(encoder, row):
                model.model(torch.tensor([encoded.input_ids[:LONGEST]]))
    return {name: moment.numpy() for name, moment in found.items()}


def evenly(rows: Sequence[Any], count: int) -> list[Any]:
    """`count` of the rows, as far apart as can be."""
    step = max(1.0, len(rows) / count)
    return [rows[int(place * step)] for place in range(min(count, len(rows)))]

"""The random tiny model in `COMPILED`, as the embedded engine serves it, and the floats that it
stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.stubs.tiny_model import save_tiny_model

COMPILED: Final = Path(__file__).parents[1] / "fixtures" / "compiled"
SHAPE = {
    "vocab_size": 768,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def save_dequantised(folder: Path) -> Path:
    """A float model folder with exactly the weights that the graph of COMPILED holds."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = save_tiny_model(folder / "float", context=512, shape=SHAPE)
    network: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    found = {name: torch.from_numpy(value) for name, value in _weights().items()}
    missing = network.load_state_dict(found, strict=False).missing_keys
    assert all("norm" in name or name == "lm_head.weight" for name in missing), missing
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def _weights() -> dict[str, Any]:
    import onnx
    from onnx import numpy_helper

    from service.engines.embedded import EmbeddedCard

    card = EmbeddedCard.model_validate_json((COMPILED / "embedded.json").read_bytes())
    graph = onnx.load(COMPILED / "model.onnx").graph
    held = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    found: dict[str, Any] = {}
    for name, codes in held.items():
        if not name.endswith(".codes"):
            continue
        base = name.removesuffix(".codes")
        scales = held[f"{base}.half_scales"].astype(np.float32)
        found[base] = _dequantised(codes, scales, held.get(f"{base}.zeros"))
    query = card.shape.heads * card.shape.head_size
    key = query + card.shape.kv_heads * card.shape.head_size
    named = {"model.embed_tokens.weight": found["words"]}
    if "head" in found:
        named["lm_head.weight"] = found["head"]
    for layer in range(card.shape.layers):
        place = f"model.layers.{layer}"
        parts = np.split(found[f"{place}.self_attn.qkv"], [query, key])
        for letter, part in zip("qkv", parts, strict=True):
            named[f"{place}.self_attn.{letter}_proj.weight"] = part.copy()
        named[f"{place}.self_attn.o_proj.weight"] = found[f"{place}.self_attn.o_proj"]
        for part in ("gate", "up", "down"):
            named[f"{place}.mlp.{part}_proj.weight"] = found[f"{place}.{part}"]
    return named


def _dequantised(codes: Any, scales: Any, zeros: Any) -> Any:
    """Map codes (rows, blocks, bytes) and scales (rows, blocks) to the weights (rows, columns) of
    `MatMulNBits`: 8 bits around 128 without `zeros`, else two codes of 4 bits in each byte."""
    if zeros is None:
        whole = codes.astype(np.float32) - 128
    else:
        centre = _nibbles(zeros)[:, : scales.shape[1], None]
        whole = _nibbles(codes) - centre
    return (whole * scales[..., None]).reshape(len(scales), -1)


def _nibbles(packed: Any) -> Any:
    pairs = np.stack([packed & 15, packed >> 4], axis=-1)
    return pairs.reshape(*packed.shape[:-1], -1).astype(np.float32)

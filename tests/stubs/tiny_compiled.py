"""A random tiny model as the embedded engine serves it, and the floats that it stands for.

python -m tests.stubs.tiny_compiled        # makes COMPILED, which needs the extra `train`
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.conftest import need
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


def save_tiny_compiled(folder: Path, *, context: int = 512, **options: Any) -> Path:
    """`folder`/compiled, made of `folder`/float. Products of floats, unless `options` say so.

    Skips the test without the extra `train`; COMPILED is one that was made before.
    """
    need("onnx", "torch", "transformers")
    from service.workshop.compilation.folder import compile_folder

    source = save_tiny_model(folder / "float", context=context, shape=SHAPE)
    config = json.loads((source / "config.json").read_bytes())
    config["revelator"] = {"templates": "compact", "autorag": "tuned", "passages": 2}
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    compiled = folder / "compiled"
    compile_folder(source, compiled, version="1", base_model="random", **{"level": 1, **options})
    return compiled


def save_dequantised(source: Path, compiled: Path, folder: Path) -> Path:
    """A float model folder with exactly the weights that the graph of `compiled` holds."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    found = {name: torch.from_numpy(value) for name, value in _weights(compiled).items()}
    missing = network.load_state_dict(found, strict=False).missing_keys
    assert all("norm" in name or name == "lm_head.weight" for name in missing), missing
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def _weights(compiled: Path) -> dict[str, Any]:
    import numpy as np
    import onnx
    from onnx import numpy_helper

    from service.engines.compiled import EmbeddedCard
    from service.workshop.compilation.quantisation import Quantised, dequantise

    card = EmbeddedCard.model_validate_json((compiled / "embedded.json").read_bytes())
    graph = onnx.load(compiled / "model.onnx").graph
    held = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    found: dict[str, Any] = {}
    for name, codes in held.items():
        if not name.endswith(".codes"):
            continue
        base = name.removesuffix(".codes")
        held_zeros = held.get(f"{base}.zeros")
        found[base] = dequantise(Quantised(codes, held[f"{base}.half_scales"], held_zeros))
    query = card.shape.heads * card.shape.head_size
    key = query + card.shape.kv_heads * card.shape.head_size
    named = {"model.embed_tokens.weight": found["words"]}
    if not card.shape.tied:
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


def main() -> None:
    with TemporaryDirectory() as folder:
        shutil.rmtree(COMPILED, ignore_errors=True)
        shutil.copytree(save_tiny_compiled(Path(folder)), COMPILED)


if __name__ == "__main__":
    main()

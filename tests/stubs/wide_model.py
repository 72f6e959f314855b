"""The shipped model made heavy without changing what it computes.

Its MLPs get more units, whose output weights are zero: each adds exactly 0 to the sum, so logits
stay the same while every step reads and multiplies the new weights too.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.conftest import need


def save_wide_model(source: Path, folder: Path, intermediate: int = 26_100) -> Path:
    """Copy the Llama model at `source` with MLPs of `intermediate` units: 26,100 make 103 M weights
    of the shipped one."""
    torch = need("torch")
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder, dirs_exist_ok=True)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["intermediate_size"] = intermediate
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            shape = (intermediate - weight.shape[0], weight.shape[1])
            more = torch.randn(shape, generator=generator).to(weight.dtype) * 0.02
            weights[name] = torch.cat([weight, more])
        elif name.endswith("down_proj.weight"):
            none = torch.zeros(weight.shape[0], intermediate - weight.shape[1], dtype=weight.dtype)
            weights[name] = torch.cat([weight, none], dim=1).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder

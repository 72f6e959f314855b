"""Read a folder of float weights, and write the folder that the embedded engine serves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from service.core.errors import ConfigurationError, InvalidRequest
from service.core.files import write_whole
from service.core.progress import shown_progress
from service.engines.compiled import (
    CARD_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    EmbeddedCard,
    ModelShape,
    digest,
)
from service.engines.encoding import PromptEncoder
from service.workshop.compilation.llama import INT8_PRODUCTS, LlamaGraph
from service.workshop.compilation.quantisation import BLOCK, Bits
from service.workshop.facts.rows import read_rows
from service.workshop.recipes.chats import encode_chat

LONGEST_CONTEXT = 8192


def compile_folder(
    source: Path,
    target: Path,
    *,
    version: str,
    base_model: str,
    bits: Bits = 4,
    word_bits: Bits = 8,
    level: int = INT8_PRODUCTS,
    calibration: Path | None = None,
) -> EmbeddedCard:
    """Compile `source`, a LlamaForCausalLM as transformers saves it, into `target`.

    The training notes of `source` (see `training_notes`) are copied. `level` is the accuracy level
    of MatMulNBits: 4 multiplies integers, 1 floats. `calibration` is a file of rows; rounding to 4
    bits minimises the error on their texts. Raises ConfigurationError for a model that the graph
    does not support, and then writes nothing.
    """
    config = _read_json(source / CONFIG_FILE)
    shape = read_shape(config)
    graph = LlamaGraph(
        _weights(source), shape, bits=bits, word_bits=word_bits, level=level,
        moments=read_moments(source, calibration) if calibration and bits == 4 else None,
    )  # fmt: skip
    tokenizer = _tokenizer(source)
    target.mkdir(parents=True, exist_ok=True)
    with shown_progress("quantising", "layers", shape.layers, Console()) as show:
        files = graph.write(target, show)
    shutil.copyfile(source / CONFIG_FILE, target / CONFIG_FILE)
    tokenizer.backend_tokenizer.save(str(target / TOKENIZER_FILE))
    files += [TOKENIZER_FILE, CONFIG_FILE]
    card = EmbeddedCard(
        version=version,
        base_model=base_model,
        digests={name: digest(target / name) for name in files},
        shape=shape,
        bits=bits,
        word_bits=word_bits,
        start=tokenizer.bos_token_id,
        ends=_ends(source, config, tokenizer),
        special_tokens=tokenizer.special_tokens_map,
        chat_template=tokenizer.chat_template,
    )
    text = card.model_dump_json(indent=2, exclude_none=True)
    write_whole(target / CARD_FILE, text + "\n")
    return card


def read_shape(config: dict[str, Any]) -> ModelShape:
    """Return the sizes in a config.json.

    Raises ConfigurationError for features that the graph does not support.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    heads, width = config["num_attention_heads"], config["hidden_size"]
    head_size = config.get("head_dim") or width // heads
    problems = [
        (
            "LlamaForCausalLM" not in config.get("architectures", []),
            "its architecture is not LlamaForCausalLM",
        ),
        (rope.get("rope_type", "default") != "default", "its rotary embeddings are scaled"),
        (bool(config.get("attention_bias") or config.get("mlp_bias")), "its matrices have biases"),
        (config.get("hidden_act", "silu") != "silu", "its activation is not silu"),
        (head_size % 16 != 0, "its head size is not a multiple of 16"),
        (
            any(size % BLOCK for size in (width, heads * head_size, config["intermediate_size"])),
            f"its sizes are not multiples of {BLOCK}",
        ),
    ]
    if reasons := "; ".join(reason for holds, reason in problems if holds):
        raise ConfigurationError(
            f"the model cannot be compiled for the embedded engine: {reasons}; serve the folder "
            "itself with kind = local"
        )
    return ModelShape(
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=head_size,
        width=width,
        vocabulary=config["vocab_size"],
        context=min(config.get("max_position_embeddings", 2048), LONGEST_CONTEXT),
        tied=bool(config.get("tie_word_embeddings")),
        epsilon=config["rms_norm_eps"],
        rope_theta=rope.get("rope_theta") or config.get("rope_theta") or 10_000.0,
    )


def _weights(source: Path) -> dict[str, NDArray[Any]]:
    """Return all tensors as float32, because numpy does not support bfloat16."""
    from safetensors.torch import load_file  # noqa: PLC0415

    found: dict[str, NDArray[Any]] = {}
    for path in sorted(source.glob("*.safetensors")):
        found |= {name: tensor.float().numpy() for name, tensor in load_file(path).items()}
    if not found:
        raise ConfigurationError(
            f"{source} contains no *.safetensors; name a folder with float weights"
        )
    if not all(np.isfinite(tensor).all() for tensor in found.values()):
        raise ConfigurationError(
            f"the weights in {source} contain NaN or infinity; use another checkpoint"
        )
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    return dict(content)


def _tokenizer(source: Path) -> Any:
    """Save the tokenizer as transformers opens it, so that the compiled folder tokenizes like the
    original."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    tokenizer: Any = AutoTokenizer.from_pretrained(source, local_files_only=True)
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    return tokenizer


def _ends(source: Path, config: dict[str, Any], tokenizer: Any) -> list[int]:
    path = source / "generation_config.json"
    generation = _read_json(path) if path.is_file() else {}
    declared = generation.get("eos_token_id", config.get("eos_token_id"))
    ends = {*(declared if isinstance(declared, list) else [declared]), tokenizer.eos_token_id}
    return sorted(token for token in ends if token is not None)


ROWS: Final = 64
LONGEST: Final = 1024  # most tokens of a row

Moments = NDArray[np.float32]


def read_moments(source: Path, rows: Path) -> dict[str, Moments]:
    """Return the second moments (in, in) of the inputs of each matrix in the layers, by the
    matrix's name.

    `rows` is a file written by `synthesize`, of which `ROWS` evenly spaced rows are used. Raises
    InvalidRequest if it contains none.
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
    used = evenly(every, ROWS)
    with (
        torch.inference_mode(),
        shown_progress("calibrating", "rows", len(used), Console()) as show,
    ):
        for done, row in enumerate(used):
            show(done)
            for encoded in encode_chat(encoder, row):
                model.model(torch.tensor([encoded.input_ids[:LONGEST]]))
    return {name: moment.numpy() for name, moment in found.items()}


def evenly(rows: Sequence[Any], count: int) -> list[Any]:
    """Return `count` of the rows, evenly spaced."""
    step = max(1.0, len(rows) / count)
    return [rows[int(place * step)] for place in range(min(count, len(rows)))]

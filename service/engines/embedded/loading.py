"""Opens the folder of a compiled model, in the engine's thread: numpy and ONNX Runtime come in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.core.errors import EngineFailure
from service.engines.compiled.card import (
    MODEL_FILE,
    TOKENIZER_FILE,
    check_files,
    read_card,
)

if TYPE_CHECKING:
    from service.engines.embedded.engine import Engine


def load_engine(
    name: str, folder: Path, *, threads: int, constrained: bool, variables: Mapping[str, Any]
) -> Engine:
    """Check the files' digests, then load them. Raises EngineFailure saying what is wrong.

    `variables`: for the chat template.
    """
    card = read_card(name, folder)
    check_files(name, folder, card)
    try:
        import jinja2  # noqa: F401, PLC0415
        import numpy  # noqa: F401, PLC0415
        import onnxruntime  # noqa: F401, PLC0415
        from tokenizers import Tokenizer  # noqa: PLC0415
    except ImportError as error:
        raise EngineFailure(
            f"engine {name!r} is of kind embedded and needs {error.name}: pip install "
            f"'revelator[local]', or set engines.{name}.kind"
        ) from None
    from service.engines.embedded.engine import Engine  # noqa: PLC0415
    from service.engines.embedded.network import Network  # noqa: PLC0415
    from service.engines.embedded.tokenizer import CompiledTokenizer  # noqa: PLC0415
    from service.engines.encoding import PromptEncoder  # noqa: PLC0415

    cores = os.cpu_count() or 1
    network = Network(folder / MODEL_FILE, card.shape, threads=max(1, min(cores, threads)))
    backend = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    encoder = PromptEncoder(CompiledTokenizer(backend, card), variables)
    return Engine(name, network, encoder, frozenset(card.ends), constrained=constrained)

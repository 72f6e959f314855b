"""Compiled models on ONNX Runtime. Importing this module imports neither that nor numpy."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from service.core.errors import EngineFailure
from service.core.extras import lacking
from service.engines.base import Capabilities
from service.engines.batch.generator import BatchedGenerator
from service.engines.batch.worker import BatchEngine
from service.engines.compiled import (
    MODEL_FILE,
    TOKENIZER_FILE,
    check_files,
    read_card,
)

QUESTION_TOKENS: Final = 192  # about 800 characters of English
READER: Final = Path(__file__).parents[2] / "models" / "reader"


class EmbeddedGenerator(BatchedGenerator):
    """A model made by `revelator compile`: the folder `settings.model`, or the shipped one."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, question_tokens=QUESTION_TOKENS)

    @property
    def _model(self) -> str:
        return self._settings.model or str(READER)

    def _load(self) -> BatchEngine:
        """Check the files' digests, then load them. Raises EngineFailure with the cause."""
        folder = Path(self._model)
        card = read_card(self._name, folder)
        check_files(self._name, folder, card)
        try:
            import jinja2  # noqa: F401, PLC0415
            import numpy  # noqa: F401, PLC0415
            import onnxruntime  # noqa: F401, PLC0415
            from tokenizers import Tokenizer  # noqa: PLC0415
        except ImportError as error:
            raise EngineFailure(
                lacking(f"engine {self._name!r} of kind embedded", error, "local")
                + f", or set engines.{self._name}.kind"
            ) from None
        from service.engines.embedded.engine import Engine  # noqa: PLC0415
        from service.engines.embedded.network import Network  # noqa: PLC0415
        from service.engines.embedded.tokenizer import CompiledTokenizer  # noqa: PLC0415
        from service.engines.encoding import PromptEncoder  # noqa: PLC0415

        threads = max(1, min(os.cpu_count() or 1, self._threads))
        network = Network(folder / MODEL_FILE, card.shape, threads=threads)
        backend = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        encoder = PromptEncoder(CompiledTokenizer(backend, card), self._settings.template_variables)
        ends = frozenset(card.ends)
        return Engine(self._name, network, encoder, ends, constrained=self._constrained)

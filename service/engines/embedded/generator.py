"""Compiled models on ONNX Runtime; importing it imports neither that nor numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from service.engines.batching.generator import BatchedGenerator
from service.engines.batching.jobs import BatchEngine

READER: Final = Path(__file__).parents[2] / "models" / "reader"


class EmbeddedGenerator(BatchedGenerator):
    """A model that `revelator compile` made: the folder `settings.model`, or the shipped one."""

    @property
    def _model(self) -> str:
        return self._settings.model or str(READER)

    def _load(self) -> BatchEngine:
        from service.engines.embedded.loading import load_engine  # noqa: PLC0415

        return load_engine(
            self._name,
            Path(self._model),
            threads=self._threads,
            constrained=self._constrained,
            variables=self._settings.template_variables,
        )

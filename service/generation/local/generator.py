"""Folders of people's own models, on torch; importing it imports no torch."""

from __future__ import annotations

from pathlib import Path

from service.generation.batching.generator import BatchedGenerator
from service.generation.batching.jobs import BatchEngine

EMBEDDED = Path(__file__).parents[2] / "models" / "embedded"


class LocalGenerator(BatchedGenerator):
    """A causal LM of transformers.

    `settings.model` is a folder (or a name in the local hub cache), absent the shipped model.
    Weights become float32 on the CPU, where a call's tokens then do not depend on what else runs.
    """

    @property
    def _model(self) -> str:
        return self._settings.model or str(EMBEDDED)

    def _load(self) -> BatchEngine:
        from service.generation.local.loading import load_engine  # noqa: PLC0415

        return load_engine(
            self._name,
            self._model,
            threads=self._threads,
            constrained=self._constrained,
            variables=self._settings.template_variables,
        )

"""Compiled models on ONNX Runtime; importing it imports neither that nor numpy."""

from __future__ import annotations

from pathlib import Path

from service.errors import ConfigurationError
from service.generation.batching.generator import BatchedGenerator
from service.generation.batching.jobs import BatchEngine


class EmbeddedGenerator(BatchedGenerator):
    """A model that `revelator compile` made; `settings.model` is its folder.

    Raises ConfigurationError where no model is named.
    """

    @property
    def _model(self) -> str:
        if not self._settings.model:
            raise ConfigurationError(
                f"engines.{self._name} is of kind embedded and names no model; set "
                f"engines.{self._name}.model to a folder created by `revelator compile`"
            )
        return self._settings.model

    def _load(self) -> BatchEngine:
        from service.generation.embedded.loading import load_engine  # noqa: PLC0415

        return load_engine(
            self._name,
            Path(self._model),
            threads=self._threads,
            constrained=self._constrained,
            variables=self._settings.template_variables,
        )

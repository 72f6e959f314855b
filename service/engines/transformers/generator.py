"""Folders of people's own models, on torch; importing it imports no torch."""

from __future__ import annotations

from service.core.errors import ConfigurationError
from service.engines.batching.generator import BatchedGenerator
from service.engines.batching.jobs import BatchEngine


class LocalGenerator(BatchedGenerator):
    """A causal LM of transformers.

    `settings.model` is a folder, or a name in the local hub cache.
    Weights become float32 on the CPU, where a call's tokens then do not depend on what else runs.
    Raises ConfigurationError where no model is named.
    """

    @property
    def _model(self) -> str:
        if not self._settings.model:
            raise ConfigurationError(
                f"engines.{self._name} is of kind local and names no model. Set "
                f"engines.{self._name}.model to a model folder, or leave kind unset for the model "
                "that comes with the service."
            )
        return self._settings.model

    def _load(self) -> BatchEngine:
        from service.engines.transformers.loading import load_engine  # noqa: PLC0415

        return load_engine(
            self._name,
            self._model,
            threads=self._threads,
            constrained=self._constrained,
            variables=self._settings.template_variables,
        )

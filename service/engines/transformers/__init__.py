"""The engine of transformers models: a thread in this process, with continuous batching."""

from service.engines.transformers.generator import LocalGenerator

__all__ = ["LocalGenerator"]

"""The engine in the process: transformers in a thread of its own, with continuous batching."""

from service.engines.transformers.generator import LocalGenerator

__all__ = ["LocalGenerator"]

"""The engine in the process: transformers in a thread of its own, with continuous batching."""

from service.generation.local.generator import LocalGenerator

__all__ = ["LocalGenerator"]

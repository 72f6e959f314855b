"""The engine of compiled models in the process: ONNX Runtime alone, with continuous batching."""

from service.generation.embedded.generator import EmbeddedGenerator

__all__ = ["EmbeddedGenerator"]

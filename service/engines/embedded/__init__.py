"""The engine of compiled models in the process: ONNX Runtime alone, with continuous batching."""

from service.engines.embedded.generator import EmbeddedGenerator

__all__ = ["EmbeddedGenerator"]

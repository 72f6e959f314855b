"""The engine of compiled models: ONNX Runtime in this process, with continuous batching."""

from service.engines.embedded.generator import EmbeddedGenerator

__all__ = ["EmbeddedGenerator"]

"""EfficientRAG: two encoders lead the search, one call of the model reads (methods §4)."""

from service.loops.efficientrag.loop import EfficientRag

__all__ = ["EfficientRag"]

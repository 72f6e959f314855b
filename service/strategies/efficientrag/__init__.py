"""EfficientRAG: two encoders control the search, and one call of the model reads (METHODS.md
§4).
"""

from service.strategies.efficientrag.loop import EfficientRag

__all__ = ["EfficientRag"]

"""DRAGIN: retrieval at tokens of which the model is uncertain (METHODS.md §3)."""

from service.strategies.dragin.loop import Dragin

__all__ = ["Dragin"]

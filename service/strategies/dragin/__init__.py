"""DRAGIN: the model's own doubt, token by token, asks for retrieval (METHODS.md §3)."""

from service.strategies.dragin.loop import Dragin

__all__ = ["Dragin"]

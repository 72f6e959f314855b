"""Auto-RAG: one model talks with the retriever until it can answer (METHODS.md §2)."""

from service.strategies.autorag.conversation import Autorag, autorag_mode

__all__ = ["Autorag", "autorag_mode"]

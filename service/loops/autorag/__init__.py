"""Auto-RAG: one model talks with the retriever until it can answer (methods §2)."""

from service.loops.autorag.conversation import Autorag

__all__ = ["Autorag"]

"""Sentences and content words of English text, without dependencies."""

from service.text.sentences import sentences
from service.text.words import STOP_WORDS, content_words

__all__ = ["STOP_WORDS", "content_words", "sentences"]

"""Content words of English text."""

from __future__ import annotations

import re
import unicodedata

STOP_WORDS = frozenset(
    [
        "a",
        "about",
        "above",
        "after",
        "again",
        "all",
        "also",
        "am",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "because",
        "been",
        "before",
        "being",
        "below",
        "between",
        "both",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "doing",
        "down",
        "during",
        "each",
        "few",
        "for",
        "from",
        "further",
        "had",
        "has",
        "have",
        "having",
        "he",
        "her",
        "here",
        "hers",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "itself",
        "just",
        "me",
        "more",
        "most",
        "my",
        "no",
        "nor",
        "not",
        "now",
        "of",
        "off",
        "on",
        "once",
        "only",
        "or",
        "other",
        "our",
        "out",
        "over",
        "own",
        "s",
        "same",
        "she",
        "should",
        "so",
        "some",
        "such",
        "t",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "through",
        "to",
        "too",
        "under",
        "until",
        "up",
        "us",
        "very",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "while",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
        "would",
        "you",
        "your",
        "many",
        "much",
        "name",
    ]
)

_CONTENT = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")


def content_words(text: str) -> set[str]:
    """Return the content words: case-folded (NFKC), without stop words and possessive endings."""
    return _content_words(_folded(text))


def shared_words(text: str, words: set[str]) -> set[str]:
    """Return which of `words`, which are content words, are content words of `text`."""
    folded = _folded(text)
    # A text without any of them, as most are, need not be cut into words.
    return words & _content_words(folded) if any(word in folded for word in words) else set()


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().replace("’", "'")


def _content_words(folded: str) -> set[str]:
    words = (word.removesuffix("'s") for word in _CONTENT.findall(folded))
    return {word for word in words if word not in STOP_WORDS}

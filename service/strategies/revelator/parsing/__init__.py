"""Free-text readers for the outputs of HANRAG's roles (METHODS.md §1.2, §1.3).

They read free output, and check output that was generated under constraints (METHODS.md §6 #4).
They are pure: any text gives a result or None, never an exception. Reasoning is ignored. A result
that would be a guess is None, so that the caller takes the method's safe choice.
"""

from service.strategies.revelator.parsing.answers import (
    DECLINED,
    NOTHING,
    AnswerReading,
    read_answer,
)
from service.strategies.revelator.parsing.labels import parse_route, parse_verdict
from service.strategies.revelator.parsing.questions import (
    Decomposed,
    parse_decomposition,
    parse_question,
)
from service.strategies.revelator.parsing.salvage import ends_with

__all__ = [
    "DECLINED",
    "NOTHING",
    "AnswerReading",
    "Decomposed",
    "ends_with",
    "parse_decomposition",
    "parse_question",
    "parse_route",
    "parse_verdict",
    "read_answer",
]

"""Free-text readers for the outputs of HANRAG's roles (methods §1.2 failure table, §1.3 outputs).

Used where an engine could not constrain decoding, and as the check where it could (methods §6 #4).
Pure and total: any text gives a reading or None, never an exception. Thinking never counts.
A reading that would be a guess is None, so that the caller can take methods' safe choice.
"""

from service.revelator.parsing.labels import parse_route, parse_verdict
from service.revelator.parsing.parts import Decomposed, parse_decomposition
from service.revelator.parsing.texts import parse_answer, parse_question

__all__ = [
    "Decomposed",
    "parse_answer",
    "parse_decomposition",
    "parse_question",
    "parse_route",
    "parse_verdict",
]

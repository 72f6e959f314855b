"""The clause at the end of a question that describes a thing by a name, as a separate question.

"What is the name of the airport in the city where WILM is licensed to broadcast?" first asks "In
which city is WILM licensed to broadcast?". It replaces the first REFINE of a small model, which
often repeats the question instead of splitting it (METHODS.md §1.3).
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Words that are not part of a plain description ("the old town").
LINKS = (
    r"(?:of|by|in|on|at|for|from|to|with|after|as|than|during|about|near|and|or|is|are|was|were"
    r"|did|does|do|has|have|had|who|whom|whose|that|which|what|where|when)"
)
_WORD = rf"(?!{LINKS}\b|the\b|an?\b)[a-z][a-z-]* "
_NAME = r"(?:the )?[A-Z0-9][^\s?,]*(?: (?:(?:of|the|in|and|de|la|for|to|a|an) )*[A-Z0-9(][^\s?,]*)*"
_STATE = (
    r"(?:[a-z]+ed|found|born|held|built|set|fought|from|in|part)"
    r"(?: (?:in|at|from|of|by|on|to [a-z]+))?"
)
_WHERE = re.compile(
    rf"\bthe (?P<sort>(?:{_WORD}){{1,2}})(?P<where>(?:where|in which) )?"
    rf"(?P<name>{_NAME}) (?P<is>is|was|are|were) (?P<state>{_STATE})(?=\W*\Z)"
)
_WHO = re.compile(
    rf"\bthe (?P<sort>{_WORD})(?:who|that|which) (?P<does>(?:[a-z]+ ){{1,4}}{_NAME})(?=\W*\Z)"
)


class Clause(NamedTuple):
    """The question that a clause asks, and the place of its description in the question:
    [start:end].
    """

    question: str
    start: int
    end: int


def last_clause(question: str) -> Clause | None:
    """Return the clause that ends a question, or None."""
    if where := _WHERE.search(question):
        opening = "In which" if where["where"] else "Which"
        asked = f"{opening} {where['sort']}{where['is']} {where['name']} {where['state']}?"
        return Clause(asked, where.start(), where.end())
    if who := _WHO.search(question):
        opening = "Who " if who["sort"] == "person " else f"Which {who['sort']}"
        return Clause(f"{opening}{who['does']}?", who.start(), who.end())
    return None

"""What rules decide about a question, without a model (METHODS.md §1.3): its last clause, a bridge
by substitution, pronouns, and messages that continue a conversation. Pure.

Language models of some hundred million parameters guess here. Cases that a rule does not decide
with certainty are left to the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from service.prompts.templates import UNANSWERED, Pair
from service.strategies.comparisons import AUXILIARIES, HELPING, STEM, shared_name
from service.text.words import (
    STOP_WORDS,
    content_words,
    letter_words,
    spelt_words,
)


def any_word(words: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of any of the words, in any case."""
    return re.compile(rf"\b(?:{'|'.join(sorted(words))})\b", re.IGNORECASE)


# ---- a question that asks for more than an answer

_POLITELY = r"\W*(?:(?:please|could|can|would|will|you|now|briefly|shortly)\W+)*"
_TEXTS = (
    r"documents?|files?|collections?|texts?|pages?|books?|handbooks?|manuals?|polic(?:y|ies)"
    r"|reports?|papers?|minutes|articles?"
)
_SUMMARY = (
    r"(?:summari[sz]e|outline)\b"
    r"|(?:give|write|make|provide|create)\b(?:\W+\w+){0,4}\W+(?:summary|overview|outline|abstract)\b"
    rf"|what\W+(?:is|are)(?:\W+(?:it|they|this|that|these|those|the|our|whole|{_TEXTS}))+"
    r"(?:\W+(?:of|from|on)(?:\W+\w+){1,3})?\W+about\W*\Z"
    rf"|(?:explain|describe|compare)\W+(?:this|these|the|all)\W+(?:whole\W+|entire\W+)?(?:{_TEXTS})\b"
)
_BROAD = re.compile(rf"{_POLITELY}(?:{_SUMMARY}|(?:paraphrase|rewrite|translate)\b)", re.I)
_SURVEY = re.compile(
    rf"{_POLITELY}(?:{_SUMMARY}|(?:list|enumerate)\W+(?:me\W+)?(?:all|every|each)\b)", re.I
)
LONGEST_SURVEY: Final = 400  # characters: a longer message has the text that it asks about


def asks_broadly(question: str) -> bool:
    """Return whether a question asks for a summary, or for another text about whole documents,
    which no passage contains."""
    return _BROAD.match(question[:400]) is not None


def asks_for_survey(question: str) -> bool:
    """Return whether a question asks what documents say as a whole, or for all there is of
    something."""
    return len(question) <= LONGEST_SURVEY and _SURVEY.match(question) is not None


# ---- the clause at the end of a question

# Words that are not part of a plain description ("the old town").
LINKS = (
    r"(?:of|by|in|on|at|for|from|to|with|after|as|than|during|about|near|and|or|is|are|was|were"
    r"|did|does|do|has|have|had|who|whom|whose|that|which|what|where|when)"
)
_PLAINLY = rf"(?!{LINKS}\b|the\b|an?\b)[a-z][a-z-]* "
_CALLED = (
    r"(?:the )?[A-Z0-9][^\s?,]*(?: (?:(?:of|the|in|and|de|la|for|to|a|an) )*[A-Z0-9(][^\s?,]*)*"
)
_STATE = (
    r"(?:[a-z]+ed|found|born|held|built|set|fought|from|in|part)"
    r"(?: (?:in|at|from|of|by|on|to [a-z]+))?"
)
_BY_STATE = re.compile(
    rf"\bthe (?P<sort>(?:{_PLAINLY}){{1,2}})(?P<where>(?:where|in which) )?"
    rf"(?P<name>{_CALLED}) (?P<is>is|was|are|were) (?P<state>{_STATE})(?=\W*\Z)"
)
_BY_DEED = re.compile(
    rf"\bthe (?P<sort>{_PLAINLY})(?:who|that|which) (?P<does>(?:[a-z]+ ){{1,4}}{_CALLED})(?=\W*\Z)"
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
    if where := _BY_STATE.search(question):
        opening = "In which" if where["where"] else "Which"
        asked = f"{opening} {where['sort']}{where['is']} {where['name']} {where['state']}?"
        return Clause(asked, where.start(), where.end())
    if who := _BY_DEED.search(question):
        opening = "Who " if who["sort"] == "person " else f"Which {who['sort']}"
        return Clause(f"{opening}{who['does']}?", who.start(), who.end())
    return None


# ---- REFINE of a bridge

LONGEST: Final = 6  # words of an answer that is a name
_PLAIN = rf"(?!{LINKS}\b)[a-z][a-z-]* "  # a word of a description
_ROLE = rf"the (?:{_PLAIN}){{1,3}}of "  # "the director of "
_SORT = rf"(?:(?:the|an?) )?(?:{_PLAIN}){{0,2}}"  # "the film "
_OF = re.compile(rf"\b{_ROLE}{_SORT}\Z")
_WHO = re.compile(
    rf"\bthe (?:{_PLAIN}){{1,2}}"
    rf"(?:(?:who|that) (?:{_PLAIN}){{1,3}}(?:(?:in|for|by|at) )?|{_PLAIN}by ){_SORT}\Z"
)
_SORT_OF = re.compile(rf"(?:\bthe (?:{_PLAIN}){{1,2}})?\Z")
_OWN = re.compile(r" ?['’]s? (?P<role>[a-z]+)(?![\w-]| of\b)")
_OWNED = re.compile(r"(?:['’]s|(?<=s)['’])(?: [a-z][a-z-]*)+\Z")
_ADDED = re.compile(r"[!?](?=[ '’?])| ?\([^()]*\)")  # "Help! (1965 film)"
_ASKING = r"\W*(?:who|what|which|where|when)(?: (?:is|are|was|were))? (?:the name of )?"
_ASKS = re.compile(rf"{_ASKING}\Z", re.IGNORECASE)
# "What is the place of birth of "
_ASKS_ROLE = re.compile(rf"{_ASKING}{_ROLE}(?:{_PLAIN}of )?\Z", re.IGNORECASE)
_WH = r"\b(?:who|whom|whose|what|which|when|where|why|how)\b"
_OPENS = re.compile(rf"\W*(?:(?:in|at|on|of|for|from|to|by) )?{_WH}", re.IGNORECASE)


def substitute_answers(question: str, pairs: Sequence[Pair]) -> str | None:
    """Return the question with the answers in place of their descriptions, if exactly one thing
    about one name is left to ask; None otherwise.
    """
    found = [(pair.question, pair.answer) for pair in pairs if pair.answer]
    if not found or not _OPENS.match(question):
        return None
    whole = False
    for asked, answer in found:
        clause = last_clause(question)
        whole = clause is not None and clause.question == asked and _is_name(answer)
        if clause and whole:
            question = question[: clause.start] + answer + question[clause.end :]
        elif replaced := _replaced(question, asked, answer):
            question = replaced
        else:
            return None
    return question if _asks_once(question, found[-1][1], names=whole) else None


def bridge_answer(question: str, pairs: Sequence[Pair]) -> str | None:
    """Return the answer to a question whose bridged form was the last one asked."""
    if len(pairs) < 2 or pairs[-1].question != substitute_answers(question, pairs[:-1]):
        return None
    return pairs[-1].answer


def _replaced(question: str, asked: str, answer: str) -> str | None:
    """Return the question with `answer` in place of the description that contains the name in
    `asked`.
    """
    span = shared_name(question, asked)
    if span is None or not _is_name(answer) or answer in question:
        return None
    left, right = question[: span[0]], question[_end_of_name(question, *span) :]
    before, held = _OF.search(left) or _WHO.search(left), _OWN.match(right)
    if held and _is_asked(held["role"], asked) and not (before and _is_asked(before[0], asked)):
        sort = _SORT_OF.search(left)
        return left[: sort.start() if sort else None] + answer + right[held.end() :]
    # With "'s" after the name: "the spouse of X's director", or "the director of X's birth date"?
    plain = before is not None and (held is None or _is_asked(before[0], asked))
    return left[: before.start()] + answer + right if before and plain else None


def _is_name(answer: str) -> bool:
    return answer[0].isupper() and len(answer.split()) <= LONGEST


def _end_of_name(question: str, start: int, end: int) -> int:
    """Return the end of a name, without "'s father", which both questions may have, and with "(1950
    film)".
    """
    if owned := _OWNED.search(question[start:end]):
        return start + owned.start()
    added = _ADDED.match(question, end)
    return added.end() if added else end


def _is_asked(described: str, asked: str) -> bool:
    stems = {word[:STEM] for word in letter_words(asked.lower())}
    words = letter_words(described.lower())
    return any(word[:STEM] in stems for word in words if len(word) >= STEM)


def _asks_once(question: str, answer: str, *, names: bool) -> bool:
    """Whether exactly one thing about the answer is asked: no other name is in the question, unless
    it may have `names`, and the answer does not describe something else ("the wife of A", "A's
    father").
    """
    left, _, right = question.partition(answer)
    rest = f"{left} {right}"
    other = not names and any(map(str.isupper, rest[1:]))
    if other or len(re.findall(_WH, rest, re.IGNORECASE)) > 1 or not content_words(rest):
        return False
    if _OWN.match(right):
        return _ASKS.match(left) is not None
    if left.endswith("of ") and (not names or _OF.search(left)):
        return _ASKS_ROLE.match(left) is not None and not letter_words(right)
    return names or (left.count(" the ") < 2 and not _OF.search(left) and not _WHO.search(left))


# ---- pronouns of sub-questions

_OF_THINGS: Final = frozenset(["it", "its", "they", "them", "their"])
_OF_PEOPLE: Final = frozenset(["he", "him", "his", "she", "her", "they", "them", "their"])
_OWNERS: Final = frozenset(["its", "their", "his"])
PRONOUNS: Final = _OF_THINGS | _OF_PEOPLE
DEMONSTRATIVES: Final = frozenset(["this", "that", "these", "those"])
_PRONOUN = any_word(PRONOUNS)
# In "How long does it take to …?" and "Is it true that …?" the pronoun refers to nothing.
_EMPTY = re.compile(
    r"(?<=time is it)|\s+(?:takes?|took|true|possible|likely|necessary|allowed|important)\b", re.I
)
_DETERMINER = re.compile(r"\b(?:the|an?|our|my|your|this|that)\s", re.IGNORECASE)
_ANY_NAME = re.compile(
    r"(?<=[\w,] )(?:the )?[A-Z0-9][\w'’&.-]*(?: (?:(?:of|the|in|de|von|for) )*[A-Z0-9][\w'’&.-]*)*"
)
_POSSESSIVE = re.compile(r"['’]s?\Z")
_DESCRIBED = re.compile(
    r"\W*(?P<asked>what|which|who)(?:['’]s| is| are| was| were) "
    r"(?P<thing>(?:the|an?|our|my|your) .+?)\W*\Z",
    re.IGNORECASE,
)
_DOING = re.compile(r"\W*who (?P<doing>(?!(?:is|are|was|were)\b).+?)\W*\Z", re.IGNORECASE)


def resolve_pronouns(question: str, earlier: Sequence[Pair]) -> str:
    """Return a sub-question with its first pronoun replaced by the subject of the newest earlier
    one that has one: its answer, if known, or its own words.

    It is returned unchanged if it names something before the pronoun, or if there is no such
    subject.
    """
    pronoun = _PRONOUN.search(question)
    if pronoun is None or _EMPTY.match(question, pronoun.end()):
        return question
    before, after = question[: pronoun.start()], question[pronoun.end() :]
    if _ANY_NAME.search(before) or _DETERMINER.search(before):
        return question
    word = pronoun[0].lower()
    thing = next(filter(None, (_thing(pair, word) for pair in reversed(earlier))), None)
    if thing is None:
        return question
    owns = word in _OWNERS or (word == "her" and re.match(r" \w", after) is not None)
    return f"{before}{thing}'s{after}" if owns else f"{before}{thing}{after}"


def _thing(pair: Pair, pronoun: str) -> str | None:
    """Return what `pronoun` refers to after a question: the thing it asks for, if the pronoun
    agrees with that, else the only name in it.
    """
    described, doing = _DESCRIBED.match(pair.question), _DOING.match(pair.question)
    asked, people = None, True
    if doing:
        asked = f"the person who {doing['doing']}"
    elif described:
        asked, people = described["thing"], described["asked"].lower() == "who"
    agrees = pronoun in (_OF_PEOPLE if people else _OF_THINGS)
    # "the tower made of" is incomplete by itself
    if asked and agrees and spelt_words(asked)[-1].lower() not in STOP_WORDS:
        return pair.answer or asked
    names = {_POSSESSIVE.sub("", name) for name in _ANY_NAME.findall(pair.question)}
    return names.pop() if len(names) == 1 else None


# ---- a message that continues a conversation

_CONTINUES = re.compile(r"^\W*(?:(?:and|but|or|so)\b\W*)?(?:(?:what|how) about\b)?\s*", re.I)
ASKING: Final = AUXILIARIES | frozenset([
    "who", "whom", "whose", "what", "which", "when", "where", "why", "how",
])  # fmt: skip
_QUESTION_WORD = any_word(ASKING)
_AT = re.compile(r"\b(?:in|for|of|on|at|from|to|with|by|during) ", re.I)
_REFERS = any_word(_OF_THINGS | DEMONSTRATIVES)
_JOINING: Final = frozenset(["of", "for", "with", "in", "to"])
_VERBS: Final = frozenset([
    "take", "get", "need", "give", "apply", "cost", "last", "begin", "start", "end", "kept",
])  # fmt: skip
# Words that alone are no topic.
_ASIDE: Final = frozenset([
    "many", "much", "long", "often", "old", "far", "big", "number", "name", "day", "days", "hour",
    "hours", "minute", "minutes", "place", "employee", "employees", "person", "people", "someone",
    "anyone",
])  # fmt: skip


def follow_up(message: str, earlier: Sequence[Pair]) -> str | None:
    """Return a message that continues a conversation as a question that can be understood alone.

    "What about the HP-90?" asks the question before about another thing, and a pronoun stands for
    what that question is about. None if it is not clear what is meant.
    """
    if not earlier:
        return None
    asked, message = earlier[-1].question.rstrip(" ?.!"), message.rstrip(" ?.!")
    rest = _CONTINUES.sub("", message, count=1)
    if 0 < len(rest) < len(message) and not _QUESTION_WORD.search(rest):
        return f"{_about_another(rest, asked)}?"
    question = f"{rest[:1].upper()}{rest[1:]}?"
    pronoun, topic = _REFERS.search(question), _topic(asked)
    topic = topic.partition(" of ")[2] or topic  # of a thing, not of what is asked about it
    if pronoun is None or not topic or _EMPTY.match(question, pronoun.end()):
        resolved = resolve_pronouns(question, earlier)
        return None if resolved == question else resolved
    owner = "'s" if pronoun[0].lower() in _OWNERS else ""
    return f"{question[: pronoun.start()]}{topic}{owner}{question[pronoun.end() :]}"


def _about_another(thing: str, asked: str) -> str:
    """Return the question before with another thing in it: in the place of its last name, if that
    is a name too, after its last preposition, or in the place of what it is about."""
    at = _AT.match(thing)
    thing = thing[at.end() :] if at else thing
    names = list(_ANY_NAME.finditer(asked)) if _ANY_NAME.search(f", {thing}") else []
    if names:
        return f"{asked[: names[-1].start()]}{thing}{asked[names[-1].end() :]}"
    if at and (places := list(_AT.finditer(asked))):
        return f"{asked[: places[-1].end()]}{thing}"
    head = _AT.split(_topic(asked))[0].strip()
    if at or not head:
        return f"{asked} for {thing}"
    return asked.replace(head, thing.removeprefix("the "), 1)


def _topic(question: str) -> str:
    """Return the longest description in a question ("days of annual leave"), or ""."""
    found: list[list[str]] = []
    phrase: list[str] = []
    asks = False  # a verb follows
    for word in [*re.findall(r"[\w'’&.-]+", question), "?"]:
        lower = word.lower()
        if phrase and (lower in _JOINING or (lower == "the" and phrase[-1].lower() in _JOINING)):
            phrase.append(word)
            continue
        ends = lower in STOP_WORDS | HELPING | _VERBS or word == "?"
        if not ends:
            phrase.append(word)
            continue
        while phrase and (phrase[-1].lower() in _JOINING or phrase[-1].lower() == "the"):
            phrase.pop()
        if asks and len(phrase) > 1 and lower not in _VERBS | {"have", "has", "be"}:
            phrase.pop()
        found.append(phrase)
        phrase, asks = [], asks or lower in HELPING
    return " ".join(max(found, key=lambda words: sum(w.lower() not in _ASIDE for w in words)))


# ---- a merge that a part is missing from

PROSE_JOINT: Final = "; "


def tell_parts(pairs: Sequence[Pair]) -> str:
    """Return the answers there are, and the parts without one."""
    answers = PROSE_JOINT.join(pair.answer for pair in pairs if pair.answer)
    missing = " ".join(pair.question for pair in pairs if not pair.answer)
    return f"{answers}. {UNANSWERED} {missing}"

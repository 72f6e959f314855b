"""What rules decide about a question, without a model (METHODS.md §1.3): its last clause, a bridge
by substitution, a comparison by arithmetic, pronouns, and counts. Pure.

Language models of some hundred million parameters guess here. Cases that a rule does not decide
with certainty are left to the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import product, takewhile
from typing import Final, NamedTuple

from service.prompts.templates import UNANSWERED, Pair
from service.text.words import (
    MONTHS,
    NUMBER_SCALES,
    STOP_WORDS,
    content_words,
    letter_words,
    normal_words,
    spelt_words,
)


def any_word(words: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of any of the words, in any case."""
    return re.compile(rf"\b(?:{'|'.join(sorted(words))})\b", re.IGNORECASE)


# ---- a question that asks for more than an answer

_BROAD = re.compile(
    r"\W*(?:(?:please|could|can|would|will|you|now|briefly|shortly)\W+)*"
    r"(?:(?:summari[sz]e|outline|paraphrase|rewrite|translate)\b"
    r"|(?:give|write|make|provide|create)\b(?:\W+\w+){0,4}\W+(?:summary|overview|outline|abstract)\b"
    r"|what\W+(?:is|are|does)\b(?:\W+\w+){0,6}\W+about\W*\Z"
    r"|(?:explain|describe|compare)\W+(?:this|these|the|all)\W+(?:whole\W+|entire\W+)?"
    r"(?:documents?|files?|collection|texts?|handbooks?|manuals?|polic(?:y|ies))\b)",
    re.IGNORECASE,
)


def asks_broadly(question: str) -> bool:
    """Return whether a question asks for a summary, or for another text about whole documents,
    which no passage contains."""
    return _BROAD.match(question[:400]) is not None


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
_STEM: Final = 4  # letters that "directed" and "director" share, and "Iran" and "Iranian"
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
    before, own = _OF.search(left) or _WHO.search(left), _OWN.match(right)
    if own and _is_asked(own["role"], asked) and not (before and _is_asked(before[0], asked)):
        sort = _SORT_OF.search(left)
        return left[: sort.start() if sort else None] + answer + right[own.end() :]
    # With "'s" after the name: "the spouse of X's director", or "the director of X's birth date"?
    plain = before is not None and (own is None or _is_asked(before[0], asked))
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
    stems = {word[:_STEM] for word in letter_words(asked.lower())}
    words = letter_words(described.lower())
    return any(word[:_STEM] in stems for word in words if len(word) >= _STEM)


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


# ---- GEN_FINAL of a comparison

_WORD = re.compile(r"[^\W_]+(?:(?!['’](?i:s)\b)[-'’.][^\W_]+)*")
_EARLY: Final = frozenset([
    "first", "earlier", "earliest", "older", "oldest", "elder", "eldest", "before", "sooner",
])  # fmt: skip
_LATE: Final = frozenset([
    "last", "later", "latest", "younger", "youngest", "recent", "recently", "newer", "after",
])  # fmt: skip
_MORE: Final = frozenset([
    "more", "most", "larger", "largest", "bigger", "biggest", "greater", "higher", "highest",
    "taller", "tallest", "longer", "longest", "heavier", "older",
])  # fmt: skip
_LESS: Final = frozenset([
    "fewer", "fewest", "less", "least", "smaller", "smallest", "lower", "lowest", "shorter",
    "shortest", "lighter", "younger",
])  # fmt: skip
_THAN: Final = frozenset(["than", "before", "after"])
_NEGATIVE: Final = frozenset(["not", "never", "neither", "nor", "no", "t"])
_HELPING: Final = frozenset([
    "do", "does", "did", "can", "could", "may", "must", "will", "would", "should",
])  # fmt: skip
AUXILIARIES: Final = _HELPING | frozenset(["is", "are", "was", "were", "has", "have", "had"])
_SMALL: Final = frozenset(["a", "an", "and", "in", "of", "the"])
_OPENING: Final = AUXILIARIES | frozenset([
    "who", "whom", "whose", "which", "what", "of", "between", "in", "out",
])  # fmt: skip
# Words after a name that occur in a question and in its sub-question alike.
_BESIDE: Final = frozenset([
    "born", "die", "died", "come", "came", "out", "released", "made", "directed", "published",
    "founded", "established", "opened", "open", "built", "located", "live", "lived", "have", "has",
    "is", "was", "are", "were", "and", "or", "from", "in", "of", "film", "first", "last",
])  # fmt: skip
_ALIKE = re.compile(r"\b(?:same|share|common|(?:from|in) one)\b")
# Questions for something other than one of the two, as "In which year was the older of … born?".
_OTHER: Final = frozenset([
    "when", "where", "why", "how", "year", "date", "month", "day", "much", "long",
])  # fmt: skip
# Countries with several names in answers; for the others the first letters are compared.
_COUNTRIES: Final = {
    "us": "us", "usa": "us", "united states": "us", "united states america": "us",
    "united states of america": "us", "america": "us", "american": "us",
    "uk": "uk", "united kingdom": "uk", "britain": "uk", "great britain": "uk", "british": "uk",
}  # fmt: skip
_YEARS: Final = range(1000, 2100)


class _Thing(NamedTuple):
    """One of the two things that are compared, at [start:end] of the question, and its known
    answer.
    """

    start: int
    end: int
    answer: str


def comparison_answer(question: str, pairs: Sequence[Pair]) -> str | None:
    """Return the answer that the pairs give to a comparison of two things that the question names:
    a name as it is written there, or `yes` or `no`.

    None in case of doubt: if the question does not compare, a value is missing, both are equal as
    far as they are known, or their units differ.
    """
    things = _things(question, pairs)
    if len(things) != 2:
        return None
    first, second = things
    rest = question[: first.start], question[first.end : second.start], question[second.end :]
    words = {word.lower() for text in rest for word in _WORD.findall(text)}
    whether = _WORD.findall(question)[0].lower() in AUXILIARIES
    if words & (_NEGATIVE | _OTHER):
        return None
    if whether and any(map(_ALIKE.search, rest)):
        return _whether(_same(first.answer, second.answer))
    order = _order(words, first.answer, second.answer)
    if order is None:
        return None
    if not whether or "or" in _WORD.findall(rest[1].lower()):
        chosen = first if order else second
        return question[chosen.start : chosen.end]
    return _whether(order) if words & _THAN else None


def _whether(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


# ---- the sub-questions of a comparison

_BOTH = r"(?P<both>[^a-z].*? (?:and|or) [^a-z].*?)"
_BETWEEN = (
    re.compile(rf"(?i:between|of|out of) {_BOTH}, (?P<asks>(?:who|which|what)\b.+)"),
    re.compile(rf"(?P<asks>(?i:who|which|what)\b[^,]*?)(?:,| out of| of the two,?) {_BOTH}\Z"),
)
_WHETHER = re.compile(
    rf"(?i:{'|'.join(sorted(AUXILIARIES))}) (?P<asks>(?:the )?(?:[a-z]+ )*?)(?:of )?{_BOTH} "
    r"(?P<more>(?:the same|share|come|have|made|born|(?:of|from) (?:the same|one))\b.*)"
)
_JOINT = re.compile(r",? (?:and|or) (?=[^a-z])")
_BY_ANOTHER = re.compile(r"\b(?:whose|with|has|had|director|directors|author|composer|founder)\b")
# What is asked of each of the two, by words of the comparison; the first that fits.
_ASKED_OF_EACH: Final = (
    (r"died|die|death", "When did {} die?"),
    (r"nationality|nationalities", "What is the nationality of {}?"),
    (r"country|countries", "In which country was {} made?"),
    (r"birthplace|born in the same|city|town", "Where was {} born?"),
    (r"film|movie|album|song|book|novel|released|came out|published", "When was {} released?"),
    (r"who", "When was {} born?"),
    (r"older|oldest|newer|founded|established|opened", "When was {} founded?"),
)


def asked_of_each(question: str) -> tuple[str, str] | None:
    """Return the two questions whose answers decide a comparison of two named things; None if it is
    none of the usual ones, or the names cannot be told apart.
    """
    text = question.strip(" ?")
    found = _BETWEEN[0].match(text) or _BETWEEN[1].match(text)
    whether = None if found else _WHETHER.match(text)
    if (found := found or whether) is None:
        return None
    rest = " ".join(each for name, each in found.groupdict().items() if name != "both").lower()
    compares = _ALIKE.search(rest) if whether else {*rest.split()} & (_EARLY | _LATE)
    if not compares or _BY_ANOTHER.search(rest):
        return None
    forms = (form for words, form in _ASKED_OF_EACH if re.search(rf"\b(?:{words})\b", rest))
    form, both = next(forms, None), found["both"]
    joints = [*_JOINT.finditer(both)]
    if len(joints) > 1:  # "Dr. Goldfoot and the Bikini Machine or Norma"
        joints = [joint for joint in joints if " or " in joint[0]]
    if form is None or len(joints) != 1:
        return None
    return form.format(both[: joints[0].start()]), form.format(both[joints[0].end() :])


# ---- what is compared


def _things(question: str, pairs: Sequence[Pair]) -> list[_Thing]:
    """Return the things that the question names, in its order, each with the newest answer about
    it.

    A sub-question is about the name that it shares with the question, or else about the subject of
    the earlier sub-question whose answer it names: about a film, by its director.
    """
    things: list[_Thing] = []
    for pair in pairs:
        if not pair.answer:
            continue
        span = shared_name(question, pair.question) or _answered(pair.question, things)
        if span is None:
            return []
        start, end = span
        things = [each for each in things if each.end <= start or end <= each.start]
        things.append(_Thing(start, end, pair.answer))
    return sorted(things)


def _answered(sub_question: str, things: Sequence[_Thing]) -> tuple[int, int] | None:
    named = f" {' '.join(normal_words(sub_question))} "
    for thing in things:
        answer = " ".join(normal_words(thing.answer))
        if answer and f" {answer} " in named:
            return thing.start, thing.end
    return None


def shared_name(question: str, sub_question: str) -> tuple[int, int] | None:
    """Return the place of the longest name that both questions contain."""
    words, own = [*_WORD.finditer(question)], _WORD.findall(sub_question.lower())
    lower = [word[0].lower() for word in words]
    name: list[re.Match[str]] = []
    for start, at in product(range(len(words)), range(len(own))):
        if lower[start] != own[at] or (start and at and lower[start - 1] == own[at - 1]):
            continue  # no run of words, or a part of one
        alike = takewhile(
            lambda pair: pair[0][0].lower() == pair[1],
            zip(words[start:], own[at:], strict=False),
        )
        name = max(name, _name([word for word, _ in alike]), key=len)
    if not name:
        return None
    start, end = name[0].start(), name[-1].end()
    if question.count("(", start, end) > question.count(")", start, end):
        end = question.find(")", end) + 1 or end
    return start, end


def _name(words: list[re.Match[str]]) -> list[re.Match[str]]:
    """Return the run of words without the small words around a name, and without the first word of
    the question, whose capital letter does not indicate a name.
    """
    if words and not words[0].start() and words[0][0].lower() in _OPENING:
        words = words[1:]
    while words and words[-1][0] in _BESIDE:
        words = words[:-1]
    capital = [at for at, word in enumerate(words) if not word[0].islower()]
    named = any(words[at][0].lower() not in _SMALL for at in capital)
    return words[capital[0] :] if named else []


# ---- how they compare


def _order(words: set[str], one: str, other: str) -> bool | None:
    """Whether the first is the one that the words ask for; None if unknown."""
    date, other_date = _date(one), _date(other)
    if date and other_date:
        known = min(len(date), len(other_date))
        return _chosen(words, _EARLY, _LATE, date[:known], other_date[:known])
    number, other_number = _number(one), _number(other)
    if date or other_date or not (number and other_number):
        return None
    if number[1] and other_number[1] and number[1] != other_number[1]:
        return None
    return _chosen(words, _LESS, _MORE, number[:1], other_number[:1])


def _chosen(
    words: set[str],
    small: frozenset[str],
    large: frozenset[str],
    one: tuple[float, ...],
    other: tuple[float, ...],
) -> bool | None:
    wants_small, wants_large = bool(words & small), bool(words & large)
    if one == other or wants_small is wants_large:
        return None
    return (one < other) is wants_small


def _date(answer: str) -> tuple[float, ...] | None:
    """Return year, month and day, as far as they are given; years BC are negative."""
    words = normal_words(answer)
    for at, word in enumerate(words):
        after = words[at + 1 : at + 3]
        if word.isdecimal() and after[:1] in (("bc",), ("bce",)):
            return (-float(word),)
        if not word.isdecimal() or int(word) not in _YEARS:
            continue
        month = MONTHS.index(after[0]) + 1 if after and after[0] in MONTHS else None
        if month is None:
            # "1,500 people" is no date.
            return (float(word),) if len(words) == at + 1 or words[at + 1].isdecimal() else None
        day = after[1:] if after[1:] and after[1].isdecimal() else ()
        return (float(word), month, *map(float, day))
    return None


def _number(answer: str) -> tuple[float, str] | None:
    """Return the first number, and the word after it, which may be its unit."""
    words = normal_words(answer)
    for at, word in enumerate(words):
        if not word[0].isdecimal():  # "nan" and "inf" are words
            continue
        try:
            value = float(word)
        except ValueError:
            continue
        rest = words[at + 1 :]
        while rest and rest[0] in NUMBER_SCALES:
            value, rest = value * NUMBER_SCALES[rest[0]], rest[1:]
        return value, rest[0] if rest else ""
    return None


def _same(one: str, other: str) -> bool | None:
    """Whether both answers are the same, or one is a part of the other ("Tehran, Iran", "Iran")."""
    forms = normal_words(one), normal_words(other)
    if not all(forms):
        return None
    names = [_COUNTRIES.get(" ".join(form), " ".join(form)) for form in forms]
    stems = [{word[:_STEM] for word in name.split()} for name in names]
    return stems[0] <= stems[1] or stems[1] <= stems[0]


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
    if asked and pronoun in (_OF_PEOPLE if people else _OF_THINGS) and not _is_open(asked):
        return pair.answer or asked
    names = {_POSSESSIVE.sub("", name) for name in _ANY_NAME.findall(pair.question)}
    return names.pop() if len(names) == 1 else None


def _is_open(described: str) -> bool:
    """Whether a description is incomplete by itself ("the tower made of")."""
    return spelt_words(described)[-1].lower() in STOP_WORDS


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
        ends = lower in STOP_WORDS | _HELPING | _VERBS or word == "?"
        if not ends:
            phrase.append(word)
            continue
        while phrase and (phrase[-1].lower() in _JOINING or phrase[-1].lower() == "the"):
            phrase.pop()
        if asks and len(phrase) > 1 and lower not in _VERBS | {"have", "has", "be"}:
            phrase.pop()
        found.append(phrase)
        phrase, asks = [], asks or lower in _HELPING
    return " ".join(max(found, key=lambda words: sum(w.lower() not in _ASIDE for w in words)))


# ---- a merge that a part is missing from

PROSE_JOINT: Final = "; "


def tell_parts(pairs: Sequence[Pair]) -> str:
    """Return the answers there are, and the parts without one."""
    answers = PROSE_JOINT.join(pair.answer for pair in pairs if pair.answer)
    missing = " ".join(pair.question for pair in pairs if not pair.answer)
    return f"{answers}. {UNANSWERED} {missing}"

"""Wordings of questions that compare two things; the last two of every tuple never train."""

from __future__ import annotations

# Comparison wordings: kind of fact, whether the smaller wins, wordings ({a} and {b}).
COMPARISONS: tuple[tuple[str, bool, tuple[str, ...]], ...] = (
    ("birth_date", True, (
        "Who was born first, {a} or {b}?", "Who is older, {a} or {b}?",
        "Who was born earlier, {a} or {b}?", "Which person was born first, {a} or {b}?",
        "Of {a} and {b}, who was born first?", "{a} or {b}: who is older?",
        "Who is the older one, {a} or {b}?", "Who was the first to be born, {a} or {b}?",
        "Was {a} or {b} born earlier?",
        "Who was born first out of {a} and {b}?", "Between {a} and {b}, who was born first?",
    )),
    ("birth_date", False, (
        "Who was born later, {a} or {b}?", "Who is younger, {a} or {b}?",
        "Who was born last, {a} or {b}?",
        "Of {a} and {b}, who is younger?", "{a} or {b}: who was born later?",
        "Who is the younger one, {a} or {b}?", "Was {a} or {b} born later?",
        "Who was born later out of {a} and {b}?", "Between {a} and {b}, who is younger?",
    )),
    ("death_date", True, (
        "Who died first, {a} or {b}?", "Who died earlier, {a} or {b}?",
        "Which person died first, {a} or {b}?",
        "Of {a} and {b}, who died earlier?", "{a} or {b}: who died first?",
        "Who was the first to die, {a} or {b}?", "Did {a} or {b} die first?",
        "Who died first out of {a} and {b}?", "Between {a} and {b}, who died first?",
    )),
    ("death_date", False, (
        "Who died later, {a} or {b}?", "Who died last, {a} or {b}?",
        "Which person died later, {a} or {b}?",
        "Of {a} and {b}, who died last?", "{a} or {b}: who died later?",
        "Who was the last to die, {a} or {b}?", "Did {a} or {b} die later?",
        "Who died later out of {a} and {b}?", "Between {a} and {b}, who died later?",
    )),
    ("film_year", True, (
        "Which film came out first, {a} or {b}?", "Which film is older, {a} or {b}?",
        "Which film was released first, {a} or {b}?",
        "Which movie was released earlier, {a} or {b}?",
        "Of {a} and {b}, which came out first?", "{a} or {b}: which film is older?",
        "Which is the older film, {a} or {b}?", "Did {a} or {b} come out first?",
        "Which film came out earlier, {a} or {b}?", "Between {a} and {b}, which film is older?",
    )),
    ("film_year", False, (
        "Which film came out later, {a} or {b}?", "Which film is newer, {a} or {b}?",
        "Which film was released more recently, {a} or {b}?",
        "Of {a} and {b}, which came out later?", "{a} or {b}: which film is newer?",
        "Which is the newer film, {a} or {b}?", "Did {a} or {b} come out later?",
        "Which film was released later, {a} or {b}?", "Between {a} and {b}, which film is newer?",
    )),
    ("founded", True, (
        "Which was founded first, {a} or {b}?", "Which is older, {a} or {b}?",
        "Which was established first, {a} or {b}?",
        "Of {a} and {b}, which was founded first?", "{a} or {b}: which was founded earlier?",
        "Was {a} or {b} founded first?",
        "Which was established earlier, {a} or {b}?", "Between {a} and {b}, which is older?",
    )),
)  # fmt: skip

SAME: dict[str, tuple[str, ...]] = {
    "nationality": (
        "Are {a} and {b} of one nationality?", "Is {a} of the same nationality as {b}?",
        "Did {a} and {b} have the same nationality?",
        "Are {a} and {b} of the same nationality?", "Do {a} and {b} have the same nationality?",
        "Are {a} and {b} both from the same country?", "Were {a} and {b} of the same nationality?",
        "Is the nationality of {a} and {b} the same?", "Do {a} and {b} share the same nationality?",
    ),
    "film_country": (
        "Were {a} and {b} made in the same country?",
        "Is the film {a} from the same country as {b}?",
        "Are {a} and {b} from the same country?",
        "Are the films {a} and {b} both from one country?",
        "Do the films {a} and {b} come from the same country?",
        "Are the films {a} and {b} from the same country?", "Do {a} and {b} come from one country?",
    ),
    "birth_place": (
        "Was {a} born in the same place as {b}?", "Were {a} and {b} born in the same town?",
        "Were {a} and {b} born in the same place?", "Do {a} and {b} have the same birthplace?",
        "Were {a} and {b} both born in the same city?",
        "Are {a} and {b} born in the same place?", "Do {a} and {b} share a birthplace?",
    ),
}  # fmt: skip

# Which film has the director who was born first, and the like: kind, smaller wins, wordings.
DIRECTED: tuple[tuple[str, bool, tuple[str, ...]], ...] = (
    ("birth_date", True, (
        "Which film's director is older, {a} or {b}?",
        "Of {a} and {b}, which has the older director?",
        "Which film has the director who was born first, {a} or {b}?",
        "Which film has the director born earlier, {a} or {b}?",
        "Which film whose director was born first, {a} or {b}?",
        "Which film's director was born first, {a} or {b}?",
    )),
    ("birth_date", False, (
        "Which film's director was born later, {a} or {b}?",
        "Of {a} and {b}, which has the younger director?",
        "Which film has the director who was born later, {a} or {b}?",
        "Which film has the younger director, {a} or {b}?",
        "Which film's director is younger, {a} or {b}?",
        "Which film whose director was born later, {a} or {b}?",
    )),
    ("death_date", True, (
        "Of {a} and {b}, whose director died first?",
        "Which film whose director died earlier, {a} or {b}?",
        "Which film has the director who died first, {a} or {b}?",
        "Which film has the director who died earlier, {a} or {b}?",
        "Which film's director died first, {a} or {b}?",
        "Which film whose director died first, {a} or {b}?",
    )),
)  # fmt: skip

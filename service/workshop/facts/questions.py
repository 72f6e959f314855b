"""Wordings of synthesised questions, by kind of fact, and the surface they are typed with.

The last two wordings of every kind never train: tests ask with them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

UNSEEN = 2

# {s} is the subject; the last two of each kind are kept for tests.
SINGLE: dict[str, tuple[str, ...]] = {
    "birth_date": (
        "When was {s} born?", "What is the date of birth of {s}?", "On what date was {s} born?",
        "In what year was {s} born?", "what is {s}'s date of birth?", "When is {s}'s birthday?",
        "What day was {s} born?", "{s} was born when?",
        "What was the birth date of {s}?", "Can you tell me when {s} was born?",
        "Which date was {s} born on?",
        "What is {s}'s birth date?", "At what date was {s} born?",
    ),
    "death_date": (
        "When did {s} die?", "What is the date of death of {s}?", "On what date did {s} die?",
        "In what year did {s} die?", "When was the death of {s}?", "what day did {s} die?",
        "{s} died when?",
        "What was {s}'s date of death?", "On which day did {s} die?", "When did {s}'s life end?",
        "What is {s}'s death date?", "When did {s} pass away?",
    ),
    "birth_place": (
        "Where was {s} born?", "What is the place of birth of {s}?", "In which city was {s} born?",
        "Where is {s} from?", "Which town was {s} born in?", "what is {s}'s birthplace?",
        "In what place was {s} born?",
        "In what city or town was {s} born?", "{s} was born where?", "Which place is {s} from?",
        "What is the birthplace of {s}?", "In which place was {s} born?",
    ),
    "death_place": (
        "Where did {s} die?", "What is the place of death of {s}?", "In which city did {s} die?",
        "In what place did {s} die?", "Which town did {s} die in?",
        "{s} died where?", "What is {s}'s place of death?", "In which town or city did {s} die?",
        "Where was the death of {s}?", "In which place did {s} die?",
    ),
    "nationality": (
        "What is the nationality of {s}?", "What nationality is {s}?", "What nationality was {s}?",
        "Which nationality does {s} have?", "what was {s}'s nationality?",
        "{s} is of what nationality?", "Which nationality was {s}?",
        "What country was {s} a citizen of?",
        "What was the nationality of {s}?", "Of which nationality is {s}?",
    ),
    "occupation": (
        "What is the occupation of {s}?", "What does {s} do?", "What was {s}'s profession?",
        "What did {s} do for a living?", "what was the job of {s}?", "Who is {s}?",
        "What job did {s} have?", "What kind of work did {s} do?", "What is {s} by profession?",
        "What is the profession of {s}?", "What is {s}'s occupation?",
    ),
    "father": (
        "Who was the father of {s}?", "Who is {s}'s father?", "Who is the father of {s}?",
        "{s} is the child of which father?", "What is the name of {s}'s father?",
        "Who fathered {s}?", "Whose child was {s} on the father's side?",
        "What was {s}'s father called?",
        "Who was {s}'s father?", "What was the name of the father of {s}?",
    ),
    "mother": (
        "Who was the mother of {s}?", "Who is {s}'s mother?", "Who is the mother of {s}?",
        "What is the name of {s}'s mother?",
        "What was {s}'s mother called?", "Which woman was the mother of {s}?",
        "{s} is the child of which mother?",
        "Who was {s}'s mother?", "What was the name of the mother of {s}?",
    ),
    "spouse": (
        "Who was the spouse of {s}?", "Who did {s} marry?", "Who is {s} married to?",
        "Who was {s}'s spouse?", "What is the name of the spouse of {s}?",
        "Who was {s} married to?", "What is the name of {s}'s spouse?", "{s} was married to whom?",
        "Who is the spouse of {s}?", "Whom did {s} marry?",
    ),
    "child": (
        "Who is the child of {s}?", "Who was a child of {s}?", "Who is {s}'s child?",
        "What is the name of {s}'s child?",
        "Which child did {s} have?", "What is the name of the child of {s}?",
        "Who was the child of {s}?",
        "Who was {s}'s child?", "What was the name of the child of {s}?",
    ),
    "sibling": (
        "Who is the sibling of {s}?", "Who was {s}'s sibling?", "Who is {s}'s sibling?",
        "What is the name of the sibling of {s}?",
        "{s} is the sibling of whom?", "Which sibling did {s} have?",
        "What is {s}'s sibling called?",
        "Who was the sibling of {s}?", "What was the name of {s}'s sibling?",
    ),
    "school": (
        "Where did {s} study?", "Which school did {s} attend?", "Where was {s} educated?",
        "what school did {s} go to?", "Which university did {s} attend?",
        "What school did {s} attend?", "Which college did {s} go to?",
        "At what school was {s} educated?",
        "Where did {s} go to school?", "At which school did {s} study?",
    ),
    "team": (
        "Which team does {s} play for?", "What team did {s} play for?", "Who does {s} play for?",
        "which club did {s} play for?",
        "What team does {s} play for?", "{s} played for which club?",
        "Which team was {s} a player of?",
        "For which team did {s} play?", "Which club does {s} play for?",
    ),
    "position": (
        "What position does {s} play?", "Which position did {s} play?",
        "What is the position of {s}?", "in what position does {s} play?",
        "{s} plays in which position?", "On the field, what is {s}'s position?",
        "What position did {s} play?", "What is {s}'s playing position?",
    ),
    "director": (
        "Who directed {s}?", "Who is the director of {s}?", "Who was the director of {s}?",
        "Which director made {s}?", "Who directed the film {s}?", "who was {s} directed by?",
        "Who is the director of the film {s}?", "What is the name of the director of {s}?",
        "{s} was directed by whom?", "Which person directed {s}?", "Whose film is {s}?",
        "What is the name of the person who directed {s}?",
        "By whom was {s} directed?", "Who was the director of the film {s}?",
    ),
    "film_year": (
        "When was {s} released?", "In what year was {s} released?", "When did {s} come out?",
        "What year did the film {s} come out?", "Which year was {s} made?",
        "When was the film {s} made?",
        "In which year was {s} released?", "{s} came out in what year?",
        "What is the release year of {s}?", "What year is the film {s} from?",
        "What year was {s} released?", "In which year did the film {s} come out?",
    ),
    "film_country": (
        "Which country is {s} from?", "What country does the film {s} come from?",
        "What is the country of origin of {s}?", "From which country is the film {s}?",
        "In which country was {s} made?", "What country is {s} from?",
        "{s} is a film from which country?",
        "What country is the film {s} from?", "Which country does {s} come from?",
    ),
    "genre": (
        "What genre is {s}?", "What is the genre of {s}?", "What kind of film is {s}?",
        "Which genre does the film {s} belong to?",
        "Which genre is {s}?", "What sort of film is {s}?", "{s} belongs to what genre?",
        "What genre is the film {s}?", "What type of film is {s}?",
    ),
    "starring": (
        "Who starred in {s}?", "Who stars in {s}?", "Which actor stars in {s}?",
        "who is the star of {s}?", "Who acted in {s}?", "Who played in the film {s}?",
        "Who is in {s}?", "Which actor played in {s}?", "Who had a leading role in {s}?",
        "Who appears in the film {s}?",
        "Who starred in the film {s}?", "Who is the leading actor of {s}?",
    ),
    "producer": (
        "Who produced {s}?", "Who is the producer of {s}?", "who was {s} produced by?",
        "Which producer made {s}?",
        "Which person produced {s}?", "Who was the film {s} produced by?",
        "What is the name of {s}'s producer?",
        "Who was the producer of {s}?", "By whom was {s} produced?",
    ),
    "writer": (
        "Who wrote {s}?", "Who is the writer of {s}?", "who was {s} written by?",
        "Who wrote the script of {s}?",
        "Who is the author of the script of {s}?", "Which writer wrote {s}?",
        "What is the name of the writer of {s}?",
        "Who was the writer of {s}?", "By whom was {s} written?",
    ),
    "composer": (
        "Who composed {s}?", "Who is the composer of {s}?", "Who composed the music of {s}?",
        "Who wrote the music for {s}?", "who did the music of {s}?",
        "{s} was composed by whom?", "Which composer wrote {s}?",
        "Who is behind the music of {s}?",
        "Who was the composer of {s}?", "By whom was {s} composed?",
    ),
    "performer": (
        "Who is the performer of {s}?", "Who sang {s}?", "Who performed {s}?",
        "Which artist recorded {s}?", "Who is the singer of the song {s}?", "Who recorded {s}?",
        "Whose song is {s}?", "Which singer recorded {s}?", "{s} is performed by whom?",
        "Who was {s} sung by?",
        "Who performed the song {s}?", "Who was the performer of {s}?",
    ),
    "author": (
        "Who is the author of {s}?", "Who wrote {s}?", "Who wrote the book {s}?",
        "which author wrote {s}?",
        "{s} was written by which author?", "Whose book is {s}?",
        "What is the name of {s}'s author?",
        "Who was the author of {s}?", "By which author is {s}?",
    ),
    "publisher": (
        "Who published {s}?", "Which company published {s}?", "Who is the publisher of {s}?",
        "what is the publisher of {s}?",
        "{s} was published by whom?", "Which publisher brought out {s}?", "Who brought out {s}?",
        "By whom was {s} published?", "Who was the publisher of {s}?",
    ),
    "label": (
        "Which record label released {s}?", "What label released {s}?",
        "What is the record label of {s}?", "who released {s}?",
        "On what label did {s} come out?", "{s} came out on which label?",
        "Which company released the record {s}?",
        "Which label released {s}?", "On which record label was {s} released?",
    ),
    "release_date": (
        "When was {s} released?", "What is the release date of {s}?", "When did {s} come out?",
        "On what date was {s} released?",
        "{s} was released on what date?", "On which day did {s} come out?",
        "Which date was {s} released on?",
        "What was the release date of {s}?", "What day was {s} released?",
    ),
    "location": (
        "Where is {s}?", "Where is {s} located?", "In which place is {s}?",
        "What is the location of {s}?", "Which county or country is {s} in?",
        "{s} is located where?", "In what place is {s} situated?", "Where does {s} lie?",
        "In which place is {s} located?", "Where can {s} be found?",
    ),
    "founded": (
        "When was {s} founded?", "In what year was {s} established?", "When did {s} start?",
        "What year was {s} founded?", "When was {s} established?",
        "{s} was founded in what year?", "When was {s} set up?",
        "What is the founding year of {s}?",
        "In which year was {s} founded?", "When was the founding of {s}?",
    ),
    "founder": (
        "Who founded {s}?", "Who is the founder of {s}?", "Who started {s}?",
        "{s} was founded by whom?", "Which person founded {s}?", "Who set up {s}?",
        "By whom was {s} founded?", "Who was the founder of {s}?",
    ),
    "headquarters": (
        "Where is {s} based?", "Where are the headquarters of {s}?", "Which city is {s} based in?",
        "{s} has its headquarters where?", "What city is home to {s}?",
        "Where is the head office of {s}?",
        "In which city is {s} based?", "Where is {s} headquartered?",
    ),
    "owner": (
        "Who owns {s}?", "Who is the owner of {s}?", "which company owns {s}?",
        "{s} is owned by whom?", "Who does {s} belong to?", "Which owner does {s} have?",
        "By whom is {s} owned?", "Who was the owner of {s}?",
    ),
    "population": (
        "What is the population of {s}?", "How many people live in {s}?",
        "what was {s}'s population?", "How big is the population of {s}?",
        "How large is the population of {s}?", "What number of people live in {s}?",
        "How many people are there in {s}?",
        "What was the population of {s}?", "How many inhabitants does {s} have?",
    ),
    "capital_of": (
        "What is {s} the capital of?", "{s} is the capital of which country?",
        "Which country has {s} as its capital?",
        "Which place is {s} the capital of?", "{s} is the capital city of what?",
        "Of which country is {s} the capital?", "What country is {s} the capital of?",
    ),
    "known_for": (
        "What is {s} known for?", "What is {s} best known for?", "what is {s} famous for?",
        "What made {s} famous?", "{s} is best known for what?", "Why is {s} known?",
        "What was {s} known for?", "For what is {s} known?",
    ),
}  # fmt: skip

# Noun phrases that stand for a fact's answer inside another question.
PHRASES: dict[str, tuple[str, ...]] = {
    "director": ("the director of {s}", "the director of the film {s}", "{s}'s director",
                 "the person who directed {s}", "the film {s}'s director"),
    "father": ("the father of {s}", "{s}'s father"),
    "mother": ("the mother of {s}", "{s}'s mother"),
    "spouse": ("the spouse of {s}", "{s}'s spouse", "the person {s} married"),
    "child": ("the child of {s}", "{s}'s child"),
    "sibling": ("the sibling of {s}", "{s}'s sibling"),
    "composer": ("the composer of {s}", "the person who composed {s}"),
    "performer": ("the performer of {s}", "the performer of the song {s}",
                  "the singer of {s}"),
    "author": ("the author of {s}", "the author of the book {s}", "the person who wrote {s}"),
    "writer": ("the writer of {s}", "the person who wrote the film {s}"),
    "starring": ("the star of {s}", "the actor who starred in {s}"),
    "producer": ("the producer of {s}", "the producer of the film {s}"),
    "founder": ("the founder of {s}", "the person who founded {s}"),
    "team": ("the team {s} plays for", "{s}'s team"),
    "school": ("the school {s} attended", "the school where {s} studied"),
    "owner": ("the owner of {s}", "the company that owns {s}"),
    "publisher": ("the publisher of {s}", "the company that published {s}"),
    "headquarters": ("the city where {s} is based",),
    "location": ("the place where {s} is located",),
    "birth_place": ("the place where {s} was born", "{s}'s birthplace"),
}  # fmt: skip


def wordings(options: Sequence[str], *, unseen: bool = False) -> Sequence[str]:
    """The wordings that train, or those kept for tests."""
    return options[-UNSEEN:] if unseen else options[:-UNSEEN]


def vary_surface(question: str, rng: random.Random) -> str:
    """The question as typed by one person or another: case and question mark come and go."""
    draw = rng.random()
    if draw < 0.5:
        return question
    if draw < 0.65:
        return question.rstrip("?").strip()
    if draw < 0.8:
        return question.lower()
    return question.lower().rstrip("?").strip()


def join_questions(questions: Sequence[str], rng: random.Random) -> str:
    """Several questions typed as one: ``When was A born, and who directed B?``."""
    heads = [question.rstrip("? ").strip() for question in questions]
    if rng.random() < 0.12:
        return " ".join(f"{head}?" for head in heads)
    tails = [_lower_first(head) for head in heads[1:]]
    joint = rng.choice((" and ", ", and ", " and also ", ", and also "))
    if len(tails) == 1:
        return f"{heads[0]}{joint}{tails[0]}?"
    return f"{', '.join([heads[0], *tails[:-1]])}{joint}{tails[-1]}?"


def _lower_first(text: str) -> str:
    first = text.split(maxsplit=1)[0] if text else ""
    known = {"who", "what", "when", "where", "which", "in", "on", "how", "at", "by", "for", "of",
             "from", "is", "are", "do", "does", "did", "was", "were", "whom", "whose"}  # fmt: skip
    return text[:1].lower() + text[1:] if first.lower() in known else text

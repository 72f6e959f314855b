"""Reader of a GEN call's output (METHODS.md §1.3): an answer, a reply that declines ("The documents
do not mention this.", "Unknown"), or nothing.

The forms of declining are those that models write. A form counts if it makes up the sentence. A
title that only looks like one ("Unknown Pleasures") is recognised by what follows, or by its
capitals.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from service.strategies.reading.salvage import (
    field,
    has_word,
    one_line,
    unfence,
    unwrap,
    without_lead,
)
from service.text import content_words
from service.text.words import MONTHS

# ---- answers

_MOST = 20_000  # characters read: an answer has a few hundred, and parsing must stay fast
_MOST_THOUGHTS = 4
_LABEL = re.compile(
    r"\s*(?:(?:i (?:think|believe)|it seems|it appears) (?:that )?(?=(?:the |my )))?(?:"
    r"(?:the |my )?(?:(?:final|short|shortest|possible|correct|direct|best) ){0,3}"
    r"(?:answer|response|output|result)(?: (?:to|for) [^\n:：]{1,120}?)?"
    r"\s*(?:[:：]|\b(?:is|would be)\b\s*[:：]?|\s[-–—=]+\s)"
    r"|a\s*[:：]|(?:(?:die|la|a|het|el) )?(?:(?:kürzeste|richtige|korte) )?"
    r"(?:antwort|réponse|respuesta|risposta|resposta|antwoord|ответ)(?: finale?)?"
    r"\s*(?:[:：]|(?:lautet|ist|est|es|è|é|is)\b\s*:?)"
    r"|答案\s*(?:是\s*)?[:：]?|回答\s*[:：]"
    r")\s*",
    re.IGNORECASE,
)
_ECHO = re.compile(
    r"\s*(?:question|query|q|doc ?\d*|document|thought|thoughts|thinking|reasoning|analysis|context"
    r"|explanation|sub-question \d+|sub-answer \d+|task)\s*[:：]",
    re.IGNORECASE,
)
_SURE_LABEL = re.compile(r"(?:.*[:：=]|\s*answer\s+[-–—])\s*", re.IGNORECASE | re.DOTALL)
# A label that is a line of its own, as Markdown's headings are.
_HEADING = re.compile(
    r"\A\s*(?:\#{1,6}[ \t]+)?(?:(?:final|short) )?answer[ \t]*[:：]?[ \t]*\n\s*(?=\S)",
    re.IGNORECASE,
)
# Our own markers, which a model repeats: alone they are no answer.
_MARKERS = re.compile(
    r"(?:(?:\#{2,}+|(?:final |initial |refined |intermediate |short )?(?:answer|query|question)"
    r"(?:_\d+)?|output|sub-(?:question|answer)(?: \d+)?|doc ?\d*|analysis|thought|task|context"
    r"|(?:retrieved )?document(?:_\d+)?)\s*+[:：]?[\s*]*+)++",
    re.IGNORECASE,
)
_NEXT_FIELD = re.compile(
    r"\n\s{0,99}(?:\#{2,}|(?:question|(?:initial |refined )?query|q|doc ?\d*|document|passage"
    r"|thought|context|task|(?:final |short |long |full |detailed )?answer|output|explanation"
    r"|reason|reasoning|analysis|note|sources?|evidence|confidence|score|citations?|references?|quotes?"
    r"|sub-question|sub-answer|user|human|assistant)\s*+\d*+\s*[:：])"
    r"|\s(?-i:Question|Query|Doc ?\d+|Sub-question \d+|Sub-answer \d+)\s*:"
    r"|[\s(（]{1,3}(?:Explanation|Reasoning|Justification|Note|Sources?|Erklärung|解释)\s*[:：]",
    re.IGNORECASE,
)
_ANSWER_LINE = re.compile(
    r"\n\W{0,99}(?=(?:(?:the )?(?:final |short )?answer|a)\s*[:：])"
    r"|(?<=[.!?])\s+(?=(?:the )?final answer\s*[:：])"
    r"|\n\s{0,99}\#{4}\s+(?=\S[^\n:：]{0,80}\s*\Z)",
    re.IGNORECASE,
)
_CONCLUDED = re.compile(
    r"\b(?:so|therefore|thus|hence|finally)\b[^.\n]{0,20}?"
    r"\b(?:the|my) (?:final )?answer is:?\s*(.+)",
    re.IGNORECASE,
)
_ALOUD = re.compile(
    r"\s*(?:let(?:'s|’s| me| us) (?:think|see|start|begin|break|look|find|analy|go|first|consider)"
    r"|first, (?:i|we|let)\b|step 1\s*[:.)–-]|we need to (?:find|know|determine|identify|look)"
    r"|i need to (?:find|determine|identify|look|figure|know (?:who|what|where|when|which|how))"
    r"|to answer (?:the|this) question\b|okay, so)",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\}){1,200})\}", re.IGNORECASE)
_LATEX_TEXT = re.compile(r"\\(?:text|mathrm|textbf)\{([^{}]*)\}", re.IGNORECASE)
_BRACKETED = re.compile(r"\[+([^\[\]\n\"'“{}]+)\]+")
_KEYS = frozenset(["answer", "finalanswer", "shortanswer", "output", "response", "result", "text"])
_CUT_FIELD = re.compile(
    r"\s*\{\s*[\"'“]?(?:final[_ ]?)?answer[\"'”]?\s*[:：]\s*[\"'“]?(.+)", re.I | re.S
)
_NULL = re.compile(r"\s*\{.{0,400}?[\"']?answer[\"']?\s*:\s*(?:null|none)\s*[,}]", re.I | re.S)
_DOC_MARK = re.compile(
    r"\s{0,99}[(\[](?:see |source: )?(?:doc(?:ument)?s? ?\d+(?:\s*,\s*)?)+[)\]]"
    r"|(?:\s{0,99}(?:\[\d{1,2}\]|【[^】\n]{1,20}】)){1,9}(?=[.\s]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_COURTESY = re.compile(
    r"(?<=[.!?\n])\s{0,99}(?:I hope (?:this|that) helps|(?:Please )?(?:let me know|feel free)"
    r"|If you (?:have|need)|Is there anything|Would you like)\b.*\Z",
    re.DOTALL | re.IGNORECASE,
)
_SPEAKER = re.compile(r"(?:assistant|bot|ai)\s*(?:[:：]|\n)\s*(?=\S)", re.IGNORECASE)
_CUT_AT_ONCE = re.compile(r"\{?\s*+[\"']?\w*[\"']?\s*+[:：]?\s*+[\"']?\s*")
_QUOTED_LINE = re.compile(r"\A(?:[>#]++\s+)+")
_LETTERED = re.compile(r"\(?[A-Ea-e]\)\s+(?=\S)")
_BULLET = re.compile(r"[-–*•]\s+(?=\S)")
_WHERE = re.compile(
    r"\W*(?:where\b|(?:(?:in|at|from|to) )?(?:which|what) (?:place|city|town|village|country)\b"
    r"|what (?:is|was) the (?:birthplace|place)\b)(?!.*\b(?:when|date|year|day)\b)",
    re.IGNORECASE,
)
_DAY = rf"(?:\d{{1,2}} )?(?:{'|'.join(MONTHS)})(?: \d{{1,2}},?)? \d{{4}}"
_DATE = re.compile(rf"(?:[,(]? ?(?:on )?{_DAY}|(?<=, )\d{{4}})\)?\Z", re.IGNORECASE)
_ABBREVIATION = re.compile(r"(?:\.\w+|\b(?:\w|Jr|Sr|Inc|Co|Corp|Ltd|No|St|Dr|etc|vs))\.$")


class AnswerReading(NamedTuple):
    """The content of a reply. If `answer` is None, the reply either stated that there is no answer
    (`declined`) or could not be read.
    """

    answer: str | None
    declined: bool = False


NOTHING = AnswerReading(None)
DECLINED = AnswerReading(None, declined=True)


def read_answer(text: str, question: str = "", *, parts: bool = False) -> AnswerReading:
    """Read a reply: its first paragraph, without labels, wrappers and text after the answer.

    Of reasoning, only the answer stated at its end counts. For `question` and `parts` (a merged
    answer, which may name missing parts), see `answer_left`.
    """
    body = unfence(unwrap(text)[:_MOST])
    if bracketed := _BRACKETED.fullmatch(body):
        body = bracketed[1]
    wrapped = field(body, _KEYS)
    if not wrapped and _NULL.match(body):
        return DECLINED
    if not wrapped and (cut := _CUT_FIELD.match(body)):
        wrapped = cut[1].rstrip("\"'”}] \n")
    body = _plain(body if wrapped is None else wrapped)
    cut_off = body.startswith("{") and _CUT_AT_ONCE.fullmatch(body)
    stated = "" if cut_off or _MARKERS.fullmatch(body) else _stated(_unlabelled(body))
    if not has_word(stated) or _MARKERS.fullmatch(stated):
        return NOTHING
    left = answer_left(stated, question, parts=parts)
    if left is None:
        return DECLINED
    answer = _tidy(_paragraph(left if left == stated else _unlabelled(left)))
    if left != body and answer.endswith((".", "。")) and not _ABBREVIATION.search(answer):
        # A full stop is removed with the removed sentence "The answer is Catania."; an untouched
        # answer keeps its own.
        answer = answer if len(answer.split()) > 5 else one_line(answer[:-1])
    answer = _place(answer) if _WHERE.match(question) else answer
    return AnswerReading(answer) if has_word(answer) else NOTHING


def _place(answer: str) -> str:
    """Return a place without the date that biographies add ("Madrid, 11 November 1974")."""
    place = _DATE.sub("", answer).rstrip(" ,(")
    return place if any(map(str.isalpha, place)) else answer


def _plain(body: str) -> str:
    """Return `body` without emphasis; the content of the last LaTeX box replaces the whole."""
    body = body.replace("**", "").replace("__", "").strip()
    if "\n" not in body:
        body = one_line(_QUOTED_LINE.sub("", body))
    if boxes := _BOXED.findall(body):
        return _LATEX_TEXT.sub(r"\1", boxes[-1]).strip()
    return body


def _unlabelled(text: str) -> str:
    """Remove labels and prefaces; of a title ("The Answer Is Never") only those with a colon or
    dash.
    """
    text = _HEADING.sub("", _SPEAKER.sub("", text.strip(), count=1), count=1)
    if is_title(text.partition("\n")[0]):
        label = _LABEL.match(text)
        if label is None or not _SURE_LABEL.fullmatch(label[0]):
            return text
    return without_lead(text, _LABEL)


def _stated(body: str) -> str:
    """Return the answer in `body`, without text before it or after it."""
    thinks = None
    for _ in range(_MOST_THOUGHTS):
        thinks = _ECHO.match(body) or _ALOUD.match(body)
        label = _ANSWER_LINE.search(body) if thinks or _explains(body) else None
        if label is None:
            break
        body = _unlabelled(body[label.end() :])
        thinks = None
    own = _NEXT_FIELD.split(body, maxsplit=1)[0] if not _ECHO.match(body) else body
    if concluded := _CONCLUDED.search(own):
        return concluded[1].strip()
    return "" if thinks else _COURTESY.sub("", own).strip()


def _explains(body: str) -> bool:
    """Whether the text before an answer's label, and before any other field, is prose."""
    label, other = _ANSWER_LINE.search(body), _NEXT_FIELD.search(body)
    if label is None or (other and other.start() < label.start()):
        return False
    return len(body[: label.start()].split()) > 5


def _paragraph(text: str) -> str:
    """Return the first paragraph with a word in it, and the next one if it ends in a colon."""
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if has_word(part)]
    alone = not paragraphs or not paragraphs[0].endswith((":", "："))
    return "\n".join(paragraphs[: 1 if alone else 2])


def _tidy(answer: str) -> str:
    """Remove quotes, bullets and document marks around each line."""
    lines = [one_line(line) for line in _DOC_MARK.sub("", answer).splitlines() if line.strip()]
    if lines and all(_BULLET.match(line) for line in lines):
        return ", ".join(one_line(_BULLET.sub("", line, count=1)) for line in lines)
    if len(lines) != 1:
        return "\n".join(filter(None, lines))
    return one_line(_LETTERED.sub("", lines[0], count=1))


# ---- refusals

_LONGEST = 1_200  # characters of a reply that are searched for a refusal
_SOURCE = (
    r"(?:documents?|docs?(?: ?\d+)?|passages?|contexts?|texts?|articles?|excerpts?|sources?"
    r"|snippets?|materials?|paragraphs?|(?:search )?results?|records?|references?|steps"
    r"|sub-?answers?|sub-?questions?|data|evidence|information|knowledge base|question|content"
    r"|corpus|pages?|files?|pdf)"
)
_NOT = r"(?:n't|n’t| not)"
_STATES = (
    r"(?:mention|state|say|specify|provide|contain|include|give|tell|indicate|reveal|address|answer"
    r"|name|list|discuss|identify|have|hold|offer|cover|disclose|report|describe|show|support|refer"
    r"|clarify|explain|note|supply|settle|present|establish|detail|make|go into|appear|seem|help"
    r"|relate|touch|allow|suffice|elaborate|directly|explicitly|actually|clearly|specifically)"
)
_STATED = (
    r"(?:mentioned|specified|stated|provided|indicated|disclosed|revealed|discussed|addressed"
    r"|answered|sufficient|enough|clear|certain|explicitly|directly|clearly|specifically)"
)
_FOUND = (
    r"(?:known|given|available|included|listed|found|identified|described|named|recorded"
    r"|documented|determined|contained|present|possible|reported|covered|established|in)"
)
_WH = r"(?:who|whom|whose|what|which|when|where|why|how|if|whether)"
_END = r"(?:[\s.!)\]}\"'”’*_]*$)"
_THING = (
    r"(?:information|mention|evidence|answers?|data|details?|indication|references?|records?"
    r"|documents?|passages?|context|clues?|statement|way|knowledge|results?|matches|match|relevant|info"
    r"|specifics?|facts?)"
)
_LEAD = re.compile(
    r"(?:(?:i'?m|i am|we are|we're)\s+(?:very |so |really )?sorry\b[\s,.!:;–-]*(?:but |that )?"
    r"|sorry[,.!:]\s*(?:but )?|sorry,? but |(?:unfortunately|regrettably|sadly)\b[\s,]*"
    r"|(?:i )?apologi[sz]e\b[^,.]{0,40}[,.]\s*(?:but )?|(?:my )?apologies[,.]\s*(?:but )?"
    r"|(?:based (?:solely |only )?(?:up)?on|according to|given|from|in|within|per|as per"
    r"|after (?:reviewing|reading|searching|checking)|looking at|using|with) (?:only )?"
    r"(?:the|this|these|all|my|your|any of the|what)\b[^,.:;]{0,80}[,:]\s*"
    r"|as an (?:ai|artificial)\b[^,.]{0,50}[,.]?\s+(?=i\b)"
    r"|(?:however|but|well|hmm|so|therefore|thus|hence|note|yet|nevertheless|still|also)\b[\s,:]+"
    r"|it (?:seems|appears|looks like)\b(?: that)?\s+(?!to\b)|(?:the )?(?:final )?answer\s*:\s*"
    r"|(?:no[_ -]?answer|impossible|unanswerable|unknown|error|answer)\s*[:–-]\s*"
    r"|i (?:think|believe|see|found|find)(?: that)? (?=the|there|it|no)"
    r"|this (?:means|indicates|suggests) (?:that )?)",
    re.IGNORECASE,
)
# A whole reply, or the beginning of a reply that then gives a reason.
_BARE = re.compile(
    r"(?:(?:the )?(?:answer |information |info |value |name |date |place ))?(?:is |was |are )?(?:"
    r"unknown|unclear|uncertain|unspecified|unanswerable|undetermined|undisclosed|unavailable"
    r"|indeterminate|inconclusive|undefined|irrelevant|n/?\.?a\.?|(?:null|nan)(?! \w)"
    r"|idk|dunno|tbd"
    r"|no[-_ ]?(?:answer|res|result|results|response|match|data|info|information|evidence|idea"
    r"|mention|clue|record|comment)s?"
    r"(?:[-_ ]?(?:was |were |is |are |has been )?(?:found|available|given|provided|possible"
    r"|mentioned|exists?|here))?"
    r"|cannot[-_ ]?answer|not[-_ ]?(?:found|mentioned|specified|stated|provided|given|available"
    r"|applicable|known|indicated|disclosed|listed|answerable|sure|certain|clear|enough|sufficient"
    r"|determined|determinable|included|discussed|addressed|possible|recorded|documented|described"
    r"|identified|named|shown|present|(?:explicitly|directly|clearly|specifically) \w+)"
    r"|(?:not enough|insufficient|lack of|inadequate|no (?:relevant|specific|sufficient|direct)) "
    rf"{_THING}(?: (?:is |was )?(?:available|provided|given|found|here))?"
    r"|unknown (?:answer|information)|can(?:'?t|not) (?:say|tell|answer|know)"
    r"|none(?: (?:mentioned|found|given|provided|specified|stated|listed|available|known))?|nothing"
    r"(?: (?:found|mentioned|known|relevant|specified))?"
    r")(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_AFTER_BARE = re.compile(
    rf"{_END}|\s*[(\[,;:.!–—-]\s*(?!and\b)|\s+(?:based on|from|in|within|by|according to|given"
    r"|due to|because|since|as|at|per|here|for|to|about|regarding|concerning|on|of|with|yet"
    rf"|explicitly|directly|{_WH})\b",
    re.IGNORECASE,
)
_NAMES_SOURCE = re.compile(
    rf"\b(?:the|this|these|those|your|any|provided|given|retrieved|available|supplied|above)"
    rf"(?: \w+){{0,2}} {_SOURCE}\b|\b(?:passages|documents|context)\b",
    re.IGNORECASE,
)
# These words mean the same in a title and in any other text: a source that is silent.
_SILENT = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:[a-z'-]+ ){{0,6}}?{_SOURCE}\b[^.;:!?]{{0,60}}?"
        rf"\b(?:do(?:es)?|did){_NOT}(?: \w+ly| even| seem to| appear to)* {_STATES}",
        rf"(?:[a-z'-]+ ){{0,6}}?{_SOURCE}\b[^.;:!?]{{0,40}}? (?:is|are|was|were) (?:silent"
        r"|incomplete|insufficient|irrelevant|unrelated|(?:not|n't) (?:sufficient|enough|relevant"
        r"|related|helpful|about|clear))",
        rf"(?:[a-z'-]+ ){{0,6}}?{_SOURCE}\b[^.;:!?]{{0,40}}? (?:lacks?|fails? to|omits?|makes? no"
        r"|cannot|can't|(?:contain|provide|have|has|give|offer|include|hold)s?"
        r" (?:no|nothing|insufficient|not enough|little|neither))\b",
        rf"(?:none|neither|nothing|not one|nowhere)(?: of| in)? (?:the|these|this|those|your|my)"
        rf"(?: \w+){{0,3}} {_SOURCE}",
        rf"(?:no|neither)(?: \w+){{0,2}} {_SOURCE} (?:\w+ly )?(?:mention|state|say|specif|provid"
        r"|contain|give|tell|name|cover|address|answer|is about|are about|was|were)",
        rf"(?:[a-z'-]+ ){{0,6}}?{_SOURCE} (?:(?:is|are|was|were|talks?|deals?)(?: only)?"
        r"|(?:only )?(?:is|are|talks?)) (?:about|with) (?:something|some(?:one|body)|an?other|other"
        r"|different)\b",
        rf"(?:[a-z'-]+ ){{0,6}}?{_SOURCE}\b[^.;:!?]{{0,80}}? but (?:not|nothing|never)"
        rf" (?:about|on|of|{_WH})\b",
        r"(?:they|it|this) (?:do(?:es)?|did)(?:n't| not)(?: \w+ly| even)* (?:mention|state|say"
        r"|specify|provide|contain|tell|indicate|reveal|address|answer|name|give|include)\b",
    )
]
_FORMS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?!.{{0,100}}\bbut\b)[^.;:!?,]{{1,110}}? (?:is|are|was|were|has|have)(?:n't| not| never)"
        rf"(?: been| \w+ly| yet)* {_STATED}\b",
        rf"(?:it|this|that|(?:the|this|that|any|such)(?: \w+){{0,2}} (?:answers?|information"
        r"|details?|data)) (?:is|are|was|were|has|have)(?:n't| not)(?: been| \w+ly| yet)*"
        rf" {_FOUND}\b",
        rf"(?!.{{0,100}}\bbut\b)[^.;:!?,]{{1,110}}? (?:is|are|has|have)(?:n't| not)"
        rf"(?: been| \w+ly| yet)* (?:known|given|available|found|recorded|identified|named)"
        rf"(?:{_END}|,? (?:in|from|by|here|at this|to me|{_WH})\b)",
        r"(?!.{0,100}\bbut\b)[^.;:!?,]{0,110}?\b(?:could|can|may)(?:n't|not| not) be"
        r"(?: \w+ly)? (?:determined|found|answered|established|identified|inferred|verified|known"
        r"|concluded|deduced|derived|located|confirmed|given|provided|ascertained|said)\b",
        rf"there(?:'s| is| are| was| were|'s| seems? to be| appears? to be)(?:n't| not)?"
        rf"(?: (?:no|any|enough|not|insufficient|sufficient|nothing|little))"
        rf"(?: [\w-]+){{0,4}}? ?(?:{_THING}|mentioned|{_SOURCE})\b",
        rf"(?:no|not enough|insufficient|lack of|limited|any)(?: [\w-]+){{0,3}}? {_THING}"
        rf"(?:{_END}|,? (?:is|are|was|were|has|have|found|available|provided|given|in|on|about"
        r"|regarding|concerning|to|for|from|that|of|could|can|exists?|mentioned|mentions?|here"
        r"|contains?|states?|was)\b)",
        r"(?:(?:i|we)(?:'m|'re| am| are| was| were| have| do| did| ca| can| could| would| will)?"
        r"(?:n't| not|not)?|im)(?: (?:really|honestly|simply|just|currently|also|been|afraid|that"
        r"|i))*(?: (?:do|did|can|could|have|am)(?:n't| not|not))?"
        r" (?:unable|not able|no (?:idea|information|knowledge|data|answer|way|access|record)"
        r"|lack|need (?:more|additional|further)|require (?:more|additional|further)|not sure"
        r"|unsure|uncertain|unaware|not certain|not aware|unfamiliar|cannot|can't)\b",
        r"(?:i|we)(?: (?:really|honestly|simply|just|currently|also|am afraid))*"
        r" ?(?:do(?:n't| not)|did(?:n't| not)|can(?:'t|not| not)|could(?:n't| not)|have(?:n't| not)"
        r"|am not|'m not|are not|aren't|'re not|won't|would(?:n't| not))"
        r"(?: \w+ly| been| able to| yet| even)* ?(?:know"
        r"|have|find|found|see|answer|determine|provide|say|tell|give|identify|locate|confirm"
        r"|verify|access|possess|recall|respond|conclude|understand|assist|help|infer|extract"
        r"|sure|certain|aware|able|familiar|make|offer|come|seem|speculate|be|given|told)\b",
        r"(?:(?:it(?:'s| is| was) )?(?:not possible|impossible|difficult|hard)(?: for me)? to"
        r"|(?:am |is )?(?:unable|not able) to|can(?:'t|not| not)|could(?:n't| not))(?: be| \w+ly)*"
        r" (?:answer|determine|say|find|found|provide|tell|identif|know|infer|locate|respond"
        r"|conclude|give|establish|predict|verif|confirm|extract|ascertain)\w*",
        r"(?:(?:could|can|would) you |kindly )?(?:please )?(?:provide|give|share|supply|specify"
        r"|rephrase|clarify) (?:me )?(?:with )?(?:more|the|additional|further|some|your|that|a"
        r"|those|relevant)\b(?=.*\b(?:context|information|details?|documents?|passages?|question"
        r"|text|sources?)\b)",
        r"(?:more|additional|further) (?:information|context|details?|documents?) (?:is|are"
        r"|would be|may be) (?:needed|required|necessary)",
        rf"(?!.{{0,100}}\bbut\b)[^.;:!?,]{{1,110}}? (?:is|are|was|were|remains?|seems?|appears?)"
        r"(?: still| currently| also| \w+ly)? (?:unknown|unclear|uncertain|unspecified|undetermined"
        r"|unavailable|undisclosed|unanswerable|ambiguous|inconclusive|impossible to \w+)"
        rf"(?:{_END}|,|\s+(?:based|from|in|to|at|due|because|as|{_WH})\b)",
        rf"not (?:in|within|part of) (?:the|these|this|any)(?: \w+){{0,2}} {_SOURCE}{_END}",
        # a prompt's own words for a possible reply
        rf"[^.;:!?]{{1,110}}\bor no answer found{_END}",
        rf"(?:nobody|no one|none of (?:us|them)) knows?(?:$|[\s,.]+(?:$|the answer|{_WH}\b))",
    )
]
_ELSEWHERE = re.compile(
    r"[^.;!?]{0,40}\b(?:keine (?:antwort|angaben?|informationen?|auskunft|erwähnung)|unbekannt"
    r"|nicht (?:\w+ )?(?:erwähnt|angegeben|genannt|bekannt|enthalten|gefunden|hervor|ersichtlich"
    r"|beantwort\w+|bestimm\w+)|wei(?:ß|ss) (?:ich |es )*nicht"
    r"|(?:ne |n['’])\w+ pas (?:mention|précis|indiqu|spécifi|fourni|connu|contien|de|la|le|d['’]"
    r"|où|qui|quand|si|répondre|trouv)\w*|je ne sais pas|ne (?:mentionne|précise|contien|fourni"
    r"|indique|permet|dit)\w* pas"
    r"|aucune (?:information|réponse|mention|donnée)|(?<!l['’])inconnue?(?=\W*$)"
    r"|non (?:mentionné|précisé|spécifié|trouvé|communiqué)e?"
    r"|no se (?:\w+ )?(?:menciona|especifica|indica|encontr|sabe|proporciona|dice|puede|conoce)\w*"
    r"|no (?:lo )?sé\b"
    r"|no (?:está|es|fue|ha sido) (?:\w+ )?(?:disponible|mencionad|especificad|conocid|clar)\w*"
    r"|desconocid[oa](?=\W*$)|desconhecid[oa](?=\W*$)|sconosciut[oa](?=\W*$)"
    r"|no (?:hay|tengo|encontr\w+|contiene\w*|proporciona\w*|menciona\w*) (?:\w+ )?(?:información"
    r"|respuesta|datos|suficiente|nada|dónde|quién|cuándo)\w*|sin (?:información|respuesta|datos)"
    r"|não (?:sei|há|é|está|foi|se|encontr|menciona|consta|especifica)\w*(?: \w+){0,2}"
    r"|non (?:è|viene|sono|ci sono|c['’]è|lo so|menziona|specifica|trov\w+|indica)\b"
    r"|nessuna (?:risposta|informazione)|onbekend|geen (?:antwoord|informatie))\b",
    re.IGNORECASE,
)
_SCRIPTS = re.compile(
    r"(?:[^。.!?]{0,40}(?:没有|沒有|未|并未|无法|無法|不能)[^。]{0,6}(?:提到|提及|提供|说明|說明|找到"
    r"|包含|确定|確定|回答|得知|相关|给出|答案|指明|记载|信息)|(?:答案)?(?:未知|不详|不詳|不清楚|不明"
    r"|无答案|没有答案|无|我?不知道)[。.]?$|[^。]{0,40}(?:記載|言及|情報|回答)[^。]{0,6}(?:いません"
    r"|ません|ない)|[^。]{0,20}(?:わかりません|分かりません)|неизвест\w+[.]?$|(?:нет|ответ не) "
    r"(?:ответа|информации|данных|найден)|[^.]{0,60}\bне (?:указан|упомина|найден|сказан|известн"
    r"|знаю|могу|содерж|говорит)\w*|.{0,30}(?:알 수 없|모르겠|모릅니다|언급되))",
    re.IGNORECASE,
)
_YES_NO = re.compile(
    r"\s*(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might)\b", re.I
)
_VERDICT = re.compile(r"(?:yes|no)(?:\s*[,.:;–—]\s*|\s*$)", re.IGNORECASE)
_COUNTS = re.compile(r"\bhow (?:many|much)\b|\bnumber of\b|\bwhich of\b", re.IGNORECASE)
_LEXICAL = re.compile(
    r"\babbreviat|\bacronym|\bstands? for\b|\bsymbol\b|\binitials\b|\bmean(?:s|ing)?\b|\bword\b"
    r"|\bterm\b",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\W*(?:none|nothing|nil|null|no one)\b", re.IGNORECASE)
_CONCEDES = re.compile(r"(?:although|though|while|whilst|even though|despite)\b[^.;]*?,\s*", re.I)
_ADVERSATIVE = re.compile(r"(?:however|but|unfortunately|yet|nevertheless)\b", re.IGNORECASE)
_TURN = re.compile(r"(?:[,;:–—]\s*|\s)(?:but|however|yet|though)\b,?\s+", re.IGNORECASE)
_ASSERTS = re.compile(
    r"\b(?:(?:the|my) (?:\w+ ){0,2}(?:answer|guess) (?:is|was|would be|might be|could be|:)"
    r"|(?:is|was|are|were|would be|be|'s) (?:most |very |also )?(?:likely|probably|presumably)"
    r"|(?:likely|probably|presumably|possibly) (?:is|was|refers|be)?"
    r"|(?:it|he|she|this) (?:could|may|might|must) (?:have been|be)"
    r"|based on (?:my|general|common|prior|external|outside|background|historical) "
    r"|from (?:my|general|common) (?:\w+ )?knowledge"
    r"|i (?:believe|think|know|can infer|(?:would|can) (?:guess|say))|(?:we|one) can infer"
    r"|(?:can|could) be inferred|it is (?:widely|commonly|well|generally) known|in reality)\b",
    re.IGNORECASE,
)
_SENTENCE_GAP = re.compile(r"(?<=[.!?])[\"'”’)]*\s+|(?<=[。！？])|\n+")
_BIG = re.compile(r"[^\W\d_]*[A-ZÀ-ÖØ-ÞЀ-Я]")
_SHORT_HEAD = 5  # words that are an answer in themselves, whatever follows


def answer_left(text: str, question: str = "", *, parts: bool = False) -> str | None:
    """Return the part of `text` that answers, or None if it says that there is no answer.

    `question` decides a few cases: "None" answers "how many", "No, …" a question of yes and no.
    With `parts` (a merged answer) a sentence that finds nothing does not void the others.
    """
    head = text.strip()[:_LONGEST]
    spans = [span for span in _SENTENCE_GAP.split(head) if span.strip()]
    if not spans or (_COUNTS.search(question) and _COUNT.match(head)) or _is_term(head, question):
        return text
    verdict = _VERDICT.match(head)
    if verdict and (not question or _YES_NO.match(question) or verdict.end() == len(head)):
        return text
    first = spans[0][verdict.end() :] if verdict and head[verdict.end() :] else spans[0]
    if conceding := _CONCEDES.match(first):
        remainder = first[conceding.end() :]
        return None if refuses(remainder) else f"{remainder} {' '.join(spans[1:])}".strip()
    if not refuses(first):
        return None if not parts and _taken_back(first, spans[1:], question) else text
    return _asserted(first, spans[1:], parts)


def refuses(sentence: str) -> bool:
    """Whether one sentence says that there is no answer."""
    text = sentence.strip(" \t\n\"'“”‘’„«»*_`()[]{}<>#❌⛔🚫⚠\ufe0f✗✘").replace("’", "'").lstrip()
    if _whole(text):
        return True
    for _ in range(4):
        lead = _LEAD.match(text)
        if lead is None or not text[lead.end() :].strip():
            break
        text = text[lead.end() :].lstrip("\"'“‘*_ ")
    if _whole(text) or any(form.match(text) for form in _SILENT):
        return True
    if _ELSEWHERE.match(text) or _SCRIPTS.match(text):
        return True
    return not is_title(text) and any(form.match(text) for form in _FORMS)


def is_title(text: str) -> bool:
    """Whether a line is written as titles are: each longer word begins with a capital.

    All capitals say nothing, nor does a single word.
    """
    words = re.findall(r"[^\W\d_][\w'’]*", text)
    if len(words) < 2 or len(words) > 12 or text.upper() == text or "\n" in text:
        return False
    longer = [word for word in words[1:] if len(word) > 3]
    bigs = [bool(_BIG.match(word)) for word in (longer or words[1:])]
    return all(bigs) and bool(_BIG.match(words[0]))


def _whole(text: str) -> bool:
    bare = _BARE.match(text)
    if bare is None:
        return False
    rest = bare["rest"]
    if re.fullmatch(_END, rest):
        return True
    after = _AFTER_BARE.match(rest)
    if after is None:
        return False
    return not is_title(text) or bool(_NAMES_SOURCE.search(rest))


def _is_term(head: str, question: str) -> bool:
    """Whether "N/A" answers a question for a term; not a reply that names the answer it lacks."""
    words = head.lower().split()
    return len(words) <= 3 and "answer" not in words and bool(_LEXICAL.search(question))


def _taken_back(first: str, rest: list[str], question: str) -> bool:
    """Whether a sentence that is no answer yet is followed by one that says there is none."""
    if len(first.split()) <= _SHORT_HEAD:
        return False
    asked = content_words(question)
    for sentence in rest:
        if _ADVERSATIVE.match(sentence) and refuses(sentence):
            return not asked or bool(asked & content_words(sentence))
    return False


def _asserted(first: str, rest: list[str], parts: bool) -> str | None:
    """Return the answer given after a refusal, in its own clause, or None."""
    turn = _TURN.search(first)
    clauses = [first[turn.end() :]] if turn else []
    for clause in [*clauses, *rest]:
        marker = _ASSERTS.search(clause)
        if marker and not refuses(clause):
            lead = _ADVERSATIVE.match(clause)
            return clause[lead.end() :].lstrip(" ,") if lead else clause
    if parts and any(len(s.split()) > _SHORT_HEAD and not refuses(s) for s in rest):
        return " ".join([first, *rest])
    return None

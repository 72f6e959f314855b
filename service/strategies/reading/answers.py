"""Reader of a GEN call's output (METHODS.md §1.3): an answer, a reply that declines ("The documents
do not mention this.", "Unknown"), or nothing.

The prompts ask a model to decline in one form, "no answer found". The other forms of declining are
those that models write most often; a form counts if it makes up the sentence. A title that only
looks like one ("Unknown Pleasures") is recognised by what follows, or by its capitals.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from service.strategies.reading.text import (
    field,
    has_word,
    one_line,
    unfence,
    unwrap,
    without_lead,
)

# ---- answers

_MOST = 20_000  # characters read: an answer has a few hundred, and parsing must stay fast
_LABEL = re.compile(
    r"\s*(?:(?:i (?:think|believe)|it seems|it appears) (?:that )?(?=(?:the |my )))?(?:"
    r"(?:the |my )?(?:(?:final|short|shortest|possible|correct|best) ){0,3}"
    r"(?:answer|response|output|result)(?: (?:to|for) [^\n:：]{1,120}?)?"
    r"\s*(?:[:：]|\b(?:is|would be)\b\s*[:：]?|\s[-–—=]+\s)"
    r"|a\s*[:：]|(?:assistant|bot)\s*[:：]"
    r"|(?:(?:die|la|a|het) )?(?:kürzeste )?"
    r"(?:antwort|réponse|respuesta|risposta|resposta|antwoord|ответ|答案|回答)(?: finale)?"
    r"\s*(?:[:：]|是[:：]?|(?:lautet|ist|est|es|è|é|is)\b\s*:?)"
    r")\s*",
    re.IGNORECASE,
)
_SURE_LABEL = re.compile(r"(?:.*[:：=]|\s*answer\s+[-–—])\s*", re.IGNORECASE | re.DOTALL)
# A label that is a line of its own, as Markdown's headings are.
_HEADING = re.compile(
    r"\A\s*(?:\#{1,6}[ \t]+)?(?:(?:final|short) )?answer[ \t]*[:：]?[ \t]*\n\s*(?=\S)",
    re.IGNORECASE,
)
# The beginning of reasoning, and of what a prompt has.
_FIELD = (
    r"(?:question|(?:initial |refined )?query|q(?=\s*[:：])|doc ?\d*|document|thoughts?|reasoning"
    r"|analysis|context|task|explanation|sub-(?:question|answer)(?: \d+)?)"
)
_THINKS = re.compile(
    rf"\s*(?:{_FIELD}\s*[:：]|let(?:'s|’s| me| us) (?:think|see|start|begin|find|look)"
    r"|first, (?:i|we|let)\b|step 1\s*[:.)–-]|(?:i|we) need to (?:find|determine|look)"
    r"|(?:i|we) need to know (?:who|what|where|when|which|how)|to answer (?:the|this) question\b)",
    re.IGNORECASE,
)
# Our own markers, which a model repeats: alone they are no answer.
_MARKERS = re.compile(
    rf"(?:(?:\#{{2,}}+|{_FIELD}|(?:final )?answer|output)\s*+[:：]?[\s*]*+)++", re.IGNORECASE
)
_NEXT_FIELD = re.compile(
    rf"\n\s{{0,99}}(?:\#{{2,}}|(?:{_FIELD}|(?:final |short |long |detailed )?answer|output|reason"
    r"|note|sources?|confidence|score|citations?|references?|quotes?|user|assistant)\s*+[:：])"
    r"|\s(?-i:Question|Query|Doc ?\d+|Sub-question \d+|Sub-answer \d+)\s*:"
    r"|[\s(（]{1,3}(?:Explanation|Reasoning|Note|Sources?)\s*[:：]",
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
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\}){1,200})\}", re.IGNORECASE)
_LATEX_TEXT = re.compile(r"\\(?:text|mathrm|textbf)\{([^{}]*)\}", re.IGNORECASE)
_BRACKETED = re.compile(r"\[+([^\[\]\n\"'“{}]+)\]+")
# A prompt's instruction repeated to its end, which is the form of declining that it asks for.
_DECLINES_LAST = re.compile(r"\bor no answer found\W*\Z", re.IGNORECASE)
_KEYS = frozenset(["answer", "finalanswer", "shortanswer", "output", "response", "result", "text"])
_DOC_MARK = re.compile(
    r"\s{0,99}[(\[](?:see |source: )?(?:doc(?:ument)?s? ?\d+(?:\s*,\s*)?)+[)\]]"
    r"|(?:\s{0,99}(?:\[\d{1,2}\]|【[^】\n]{1,20}】)){1,9}(?=[.\s]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_COURTESY = re.compile(
    r"(?<=[.!?\n])\s{0,99}(?:I hope (?:this|that) helps|(?:Please )?(?:let me know|feel free)"
    r"|If you (?:have|need)|Is there anything)\b.*\Z",
    re.DOTALL | re.IGNORECASE,
)
_QUOTED_LINE = re.compile(r"\A(?:[>#]++\s+)+")
_LETTERED = re.compile(r"\(?[A-Ea-e]\)\s+(?=\S)")
_BULLET = re.compile(r"[-–*•]\s+(?=\S)")
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
    body = _plain(body if wrapped is None else wrapped)
    stated = "" if _MARKERS.fullmatch(body) else _stated(_unlabelled(body))
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
    return AnswerReading(answer) if has_word(answer) else NOTHING


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
    text = _HEADING.sub("", text.strip(), count=1)
    if is_title(text.partition("\n")[0]):
        label = _LABEL.match(text)
        if label is None or not _SURE_LABEL.fullmatch(label[0]):
            return text
    return without_lead(text, _LABEL)


def _stated(body: str) -> str:
    """Return the answer in `body`, without text before it or after it."""
    thinks = _THINKS.match(body) and not is_title(body)
    label = _ANSWER_LINE.search(body)
    if label is not None and (thinks or _explains(body, label.start())):
        body, thinks = _unlabelled(body[label.end() :]), False
    first = _NEXT_FIELD.split(body, maxsplit=1)[0]
    if concluded := _CONCLUDED.search(first):
        return concluded[1].strip()
    return "" if thinks else _COURTESY.sub("", first).strip()


def _explains(body: str, label: int) -> bool:
    """Whether the text before an answer's label, and before any other field, is prose."""
    other = _NEXT_FIELD.search(body)
    return (other is None or other.start() >= label) and len(body[:label].split()) > 5


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
_SHORT_HEAD = 5  # words that are an answer in themselves, whatever follows
_SOURCE = (
    r"(?:documents?|docs?(?: ?\d+)?|passages?|contexts?|texts?|articles?|sources?|materials?"
    r"|results?|information|evidence|question)"
)
_NOT = r"(?:n't| not)"
_WH = r"(?:who|whom|whose|what|which|when|where|why|how|if|whether)"
_END = r"(?:[\s.!)\]}\"'”*_]*$)"
_BEGIN = r"(?:[a-z'-]+ ){0,6}?"  # "Unfortunately the three"
_CLAUSE = r"(?!.{0,100}\bbut\b)[^.;:!?,]{1,110}?"
_STATES = (
    r"(?:mention|state|say|specify|provide|contain|include|give|tell|indicate|reveal|address|answer"
    r"|name|list|explicitly|directly)"
)
_STATED = (
    r"(?:mentioned|specified|stated|provided|indicated|given|available|included|found|named|known"
    r"|listed)"
)
_THING = (
    r"(?:information|info|mention|evidence|answers?|data|details?|documents?|passages?|context|idea"
    r"|relevant|results?)"
)
_LEAD = re.compile(
    r"(?:(?:i'm |i am )?sorry\b[\s,.!:–-]*(?:but |that )?|(?:unfortunately|however|but|so)\b[\s,]*"
    r"|(?:based on|according to|given|from|in)\b[^,.:;]{1,80}[,:]\s*|as an ai\b[^,.]{0,50},\s*"
    r"|i'm afraid |(?:no[_ -]?answer|impossible|unknown|answer)\s*[:–-]\s*)",
    re.IGNORECASE,
)
# A whole reply, or the beginning of a reply that then gives a reason.
_BARE = re.compile(
    r"(?:(?:the )?(?:answer|information|info) )?(?:is )?(?:"
    r"unknown|unclear|unanswerable|unspecified|undetermined|insufficient information|n/?\.?a\.?"
    r"|none(?: found)?|nothing|null|no[-_ ]?(?:answer|res|result|response|match|data|information"
    r"|idea|evidence)s?(?:[-_ ]?(?:was |is )?(?:found|available|given|provided))?"
    r"|cannot[-_ ]?(?:answer|say)|(?:i'm )?not[-_ ]?(?:applicable|answerable|sure|enough|mentioned"
    r"|specified"
    r"|stated|provided|given|available|found|known|disclosed|determined|(?:explicitly|clearly) \w+)"
    r"|i don't know|idk)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_AFTER_BARE = re.compile(
    rf"{_END}|\s*[(\[,;:.!–—-]\s*(?!and\b)|\s+(?:based on|from|in|within|by|to|for|about|{_WH})\b",
    re.IGNORECASE,
)
# Forms that mean the same in a title and in any other text: a source that is silent.
_SILENT = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_BEGIN}{_SOURCE}\b[^.;:!?]{{0,60}}? (?:do(?:es)?|did){_NOT}(?: \w+ly)? {_STATES}",
        rf"{_BEGIN}{_SOURCE}\b[^.;:!?]{{0,40}}? (?:is|are)"
        rf"(?: insufficient|{_NOT} (?:enough|relevant))",
        rf"(?:none|neither|nothing|no)(?: of| in)?(?: the| these)?(?: \w+)? {_SOURCE} "
        rf"(?:\w+ly )?{_STATES}",
        rf"{_BEGIN}{_SOURCE} (?:is|are) about (?:something|some(?:one|body)|an?other|other)\b",
    )
]
_FORMS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_CLAUSE} (?:is|are|was|were|has been){_NOT}(?: \w+ly)? {_STATED}"
        rf"(?:{_END}|,? (?:in|from|by|here|{_WH})\b)",
        rf"(?:{_CLAUSE} )?(?:could|can) ?(?:n't|not) be"
        r" (?:determined|found|answered|established|known)\b",
        rf"{_CLAUSE} (?:is|remains) (?:unknown|unclear)(?:{_END}|,|\s+(?:from|in|{_WH})\b)",
        rf"there(?:'s| is| are| was)(?:n't)? (?:no|any|not enough)(?: \w+){{0,3}}? {_THING}\b",
        rf"(?:no|not enough|insufficient)(?: \w+){{0,2}} {_THING}"
        rf"(?:{_END}| (?:is|was|found|available|in|about|to|for)\b)",
        r"(?:i|we)(?: (?:do|did|could|have|would|am|was|are|ca)(?:n't| not)| cannot)(?: \w+ly)?"
        r" (?:know|have|find|see|answer|determine|given|say)\b",
        r"(?:i|we)(?: (?:have|am|was|would))? (?:no (?:idea|information)|unable|need more)\b",
        r"(?:it(?:'s| is) )?(?:impossible|not possible|unable) to"
        r"|can(?:'t| ?not) (?:answer|determine|say)|please provide|not in the\b.*",
    )
]
# The same in other languages, as models write it most often.
_ELSEWHERE = re.compile(
    r"[^.;!?。]{0,40}(?:\bkeine (?:antwort|angaben?|informationen?)\b|\bnicht (?:\w+ )?(?:erwähnt"
    r"|bekannt|genannt|angegeben)\b|\bne sais pas\b|\bne \w+ pas\b|\bno se \w+|\bno está \w+"
    r"|\bnon è \w+|\bnão há\b|неизвестн|没有提到|无法确定)",
    re.IGNORECASE,
)
_YES_NO = re.compile(
    r"\s*(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might)\b", re.I
)
_VERDICT = re.compile(r"(?:yes|no)(?:\s*[,.:;–—]\s*|\s*$)", re.IGNORECASE)
_COUNTS = re.compile(r"\bhow (?:many|much)\b|\bnumber of\b|\bwhich of\b", re.IGNORECASE)
_LEXICAL = re.compile(
    r"\babbreviat|\bstands? for\b|\bsymbol\b|\bmean(?:s|ing)?\b|\bword\b|\bterm\b", re.I
)
_COUNT = re.compile(r"\W*(?:none|nothing|no one)\b", re.IGNORECASE)
_CONCEDES = re.compile(r"(?:although|though|while|even though|despite)\b[^.;]*?,\s*", re.I)
_ADVERSATIVE = re.compile(r"(?:however|but|unfortunately|yet|nevertheless)\b", re.IGNORECASE)
_TURN = re.compile(r"(?:[,;:–—]\s*|\s)(?:but|however|yet|though)\b,?\s+", re.IGNORECASE)
_ASSERTS = re.compile(
    r"\b(?:(?:the|my) (?:\w+ )?answer (?:is|was|would be)|(?:most )?(?:likely|probably|presumably)"
    r"|(?:based on|from) (?:my|general|common) |i (?:believe|think|know)|can be inferred)\b",
    re.IGNORECASE,
)
_SENTENCE_GAP = re.compile(r"(?<=[.!?])[\"'”’)]*\s+|(?<=[。！？])|\n+")
_BIG = re.compile(r"[^\W\d_]*[A-ZÀ-ÖØ-ÞЀ-Я]")


def answer_left(text: str, question: str = "", *, parts: bool = False) -> str | None:
    """Return the part of `text` that answers, or None if it says that there is no answer.

    `question` decides a few cases: "None" answers "how many", "No, …" a question of yes and no.
    With `parts` (a merged answer) a sentence that finds nothing does not void the others.
    """
    head = text.strip()[:_LONGEST]
    if not parts and _DECLINES_LAST.search(head):
        return None
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
    return _asserted(first, spans[1:], parts) if refuses(first) else text


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
    return not is_title(text) and any(form.match(text) for form in (*_FORMS, _ELSEWHERE))


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
    """Whether a reply is a bare refusal, or begins with one and gives a reason."""
    bare = _BARE.match(text)
    if bare is None or re.fullmatch(_END, bare["rest"]):
        return bare is not None
    return _AFTER_BARE.match(bare["rest"]) is not None and not is_title(text)


def _is_term(head: str, question: str) -> bool:
    """Whether "N/A" answers a question for a term; not a reply that names the answer it lacks."""
    words = head.lower().split()
    return len(words) <= 3 and "answer" not in words and bool(_LEXICAL.search(question))


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

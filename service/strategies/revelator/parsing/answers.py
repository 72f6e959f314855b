"""Reader of a GEN call's output (METHODS.md §1.3): an answer, a declined reply, or nothing."""

from __future__ import annotations

import re
from typing import NamedTuple

from service.strategies.revelator.parsing.questions import field, without_lead
from service.strategies.revelator.parsing.refusals import answer_left, is_title
from service.strategies.revelator.parsing.salvage import has_word, one_line, unfence, unwrap
from service.text.words import MONTHS

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
    r"\n\s*(?:\#{2,}|(?:question|(?:initial |refined )?query|q|doc ?\d*|document|passage|thought"
    r"|context|task|(?:final |short |long |full |detailed )?answer|output|explanation|reason"
    r"|reasoning|analysis|note|sources?|evidence|confidence|score|citations?|references?|quotes?"
    r"|sub-question|sub-answer|user|human|assistant)\s*\d*\s*[:：])"
    r"|\s(?-i:Question|Query|Doc ?\d+|Sub-question \d+|Sub-answer \d+)\s*:"
    r"|[\s(（]{1,3}(?:Explanation|Reasoning|Justification|Note|Sources?|Erklärung|解释)\s*[:：]",
    re.IGNORECASE,
)
_ANSWER_LINE = re.compile(
    r"\n\W*(?=(?:(?:the )?(?:final |short )?answer|a)\s*[:：])"
    r"|(?<=[.!?])\s+(?=(?:the )?final answer\s*[:：])"
    r"|\n\s*\#{4}\s+(?=\S[^\n:：]{0,80}\s*\Z)",
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
    r"\s*[(\[](?:see |source: )?(?:doc(?:ument)?s? ?\d+(?:\s*,\s*)?)+[)\]]"
    r"|(?:\s*(?:\[\d{1,2}\]|【[^】\n]{1,20}】)){1,9}(?=[.\s]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_COURTESY = re.compile(
    r"(?<=[.!?\n])\s*(?:I hope (?:this|that) helps|(?:Please )?(?:let me know|feel free)"
    r"|If you (?:have|need)|Is there anything|Would you like)\b.*\Z",
    re.DOTALL | re.IGNORECASE,
)
_SPEAKER = re.compile(r"(?:assistant|bot|ai)\s*(?:[:：]|\n)\s*(?=\S)", re.IGNORECASE)
_CUT_AT_ONCE = re.compile(r"\{?\s*[\"']?\w*[\"']?\s*[:：]?\s*[\"']?\s*")
_QUOTED_LINE = re.compile(r"\A(?:[>#]++\s+)+")
_LETTERED = re.compile(r"\(?[A-Ea-e]\)\s+(?=\S)")
_BULLET = re.compile(r"\s*[-–*•]\s+(?=\S)")
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

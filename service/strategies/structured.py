"""The answer as JSON of a client's schema: one last call, over the answer and its evidence.

The engine holds its output to the schema if it can. In any case the JSON is validated, and its
strings are looked for in the answer and the evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote

import orjson
from jsonschema_rs import ReferencingError, RegexOptions, ValidationError, Validator, validator_for

from service.answer.events import RetrievedPassage
from service.answer.inquiry import OpenStep
from service.answer.request import OutputForm
from service.core.domain import Passage
from service.core.errors import EngineFailure, InvalidRequest, RevelatorError
from service.engines.base import GenerationRequest, Message
from service.prompts.templates import Titled
from service.strategies.calls import RETRY_TEMPERATURE
from service.text.grounding import bears

TOKENS: Final = 1_024  # of the JSON, at most
EVIDENCE_LETTERS: Final = 6_000
LARGEST_SCHEMA: Final = 60_000  # characters of JSON
DEEPEST: Final = 64  # objects and lists of a schema within each other, through references
_BOUND: Final = {"enum", "const", "pattern", "format"}
_MARKS: Final = " \t\n,;:"
_QUOTES: Final = "\"'“”„‘’«»"
_DYNAMIC: Final = {"$dynamicRef", "$recursiveRef"}


class NotStructured(RevelatorError):
    slug, title, status = "unstructured-answer", "The answer does not fit the schema", 422


def check_schema(schema: object, place: str) -> dict[str, Any]:
    """Return a JSON Schema that can be used. Raises InvalidRequest, which begins with `place`, if
    it is not valid, too large, or refers to itself or to other documents.
    """
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{place}: it must be a JSON object, the schema of the answer")
    if len(orjson.dumps(schema)) > LARGEST_SCHEMA:
        raise InvalidRequest(f"{place}: a schema may have {LARGEST_SCHEMA:,} characters of JSON")
    _check_references(schema, place)
    try:
        _validator(schema)
    except (ValidationError, ReferencingError, ValueError) as error:
        at = "".join(f".{key}" for key in getattr(error, "instance_path", ()))
        why = str(error).splitlines()[0][:200]
        raise InvalidRequest(f"{place}{at}: this is not a JSON Schema: {why}") from None
    return schema


def _check_references(schema: dict[str, Any], place: str) -> None:
    sound: set[str] = set()

    def visit(node: object, depth: int) -> None:
        if depth > DEEPEST:
            raise InvalidRequest(
                f"{place}: a schema may be {DEEPEST} levels deep, and one that refers to itself is "
                "deeper"
            )
        if isinstance(node, dict):
            reference = node.get("$ref", "#" if _DYNAMIC & node.keys() else None)
            if isinstance(reference, str) and reference not in sound:
                visit(_referred(schema, reference, place), depth + 1)
                sound.add(reference)
        for child in _children(node):
            visit(child, depth + 1)

    visit(schema, 0)


def _children(node: object) -> Iterator[object]:
    yield from node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _nodes(node: object) -> Iterator[object]:
    """Yield a value of JSON and all within it."""
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _referred(schema: object, reference: str, place: str) -> object:
    found = schema
    try:
        if not reference.startswith("#/"):
            raise KeyError(reference)
        for part in unquote(reference[2:]).split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            found = found[int(key)] if isinstance(found, list) else found[key]  # type: ignore[index]
    except (KeyError, IndexError, ValueError, TypeError):
        raise InvalidRequest(
            f"{place}: it refers to {reference[:80]!r}; a schema may only refer to its own parts, "
            "such as '#/$defs/name'"
        ) from None
    return found


def _validator(schema: dict[str, Any]) -> Validator:
    return validator_for(schema, offline=True, pattern_options=RegexOptions(size_limit=1_000_000))


async def structured(
    step: OpenStep, answer: str, passages: Sequence[RetrievedPassage], form: OutputForm
) -> str:
    """Return the JSON, whose strings are all in the answer or its evidence: others become null, or
    are left out of a list. Output that does not fit then, or has nothing of the answer, is
    requested once more; where the engine holds it to the schema, each text is then the answer, or
    the title of a passage.

    Raises NotStructured, and the errors of `OpenStep.ask`. Without a schema, it never fails: the
    answer is then the only field.
    """
    titles = list(dict.fromkeys(passage.title for passage in passages if passage.title))
    texts = [answer, *titles, *(passage.text for passage in passages)]
    prompt = step.inquiry.roles.revelator.templates.fill(
        "structured",
        step.inquiry.question,
        answer=answer,
        passages=_shown(passages),
        schema=form.json_schema,
        instructions=form.instructions,
    )
    held: dict[str, Any] | None = form.json_schema
    fitting: str | None = None
    most = min(TOKENS, 64 + len(orjson.dumps(held)) // 2)
    for heat in (0.0, RETRY_TEMPERATURE):
        request = GenerationRequest(
            messages=(Message("user", prompt),), max_tokens=most, temperature=heat,
            json_schema=held, from_client=True,
        )  # fmt: skip
        try:
            reply = await step.ask("revelator", request, final=True)
        except RevelatorError as error:
            if fitting:
                return fitting
            if heat or not isinstance(error, EngineFailure):
                raise
            held = None  # it may be the constraint that the engine cannot take
            continue
        fitting = _fitting(reply.text, form, texts) or fitting
        if fitting and (heat or not _texts(form.json_schema) or _tells(fitting, answer)):
            return fitting
        only = [answer] if _texts(form.json_schema) == 1 else [answer, *titles]
        held, most = _narrowed(form.json_schema, only), TOKENS
    if form.free:
        return orjson.dumps({"answer": answer}).decode()
    raise NotStructured(
        "The model wrote no JSON that fits the schema, with strings that are in the answer or its "
        "evidence. Allow null where the answer may lack a value, or use a larger model."
    )


def _fitting(reply: str, form: OutputForm, texts: Sequence[str]) -> str | None:
    """Return the JSON of a reply with those of its strings that stand in a text or in the schema,
    None if it does not fit the schema. An object without one must be whole, and not empty.
    """
    choices = {choice for choice in _choices(form.json_schema) if isinstance(choice, str)}

    def tidy(text: str) -> str:
        """Return the text without the marks that a model copies, or adds, at its ends."""
        if text in choices:
            return text
        ways = map(text.strip, (_MARKS, _MARKS + _QUOTES))
        return next((way for way in ways if way and any(way in shown for shown in texts)), text)

    def known(text: str) -> str | None:
        stands = text in choices or any(text in shown or bears(shown, text) for shown in texts)
        return text if stands else None

    try:
        value = _grounded(_read(reply), tidy)
    except ValueError:
        return None
    kept = _grounded(value, known)
    fits = _validator(form.json_schema).is_valid(kept) and (not form.free or value == kept != {})
    return orjson.dumps(kept).decode() if fits else None


def _tells(reply: str, answer: str) -> bool:
    """Whether a value of the JSON is in the answer, or has it inside."""
    plain = (node for node in _nodes(orjson.loads(reply)) if not isinstance(node, dict | list))
    told = (str(node) for node in plain if node not in (None, ""))
    return any(text in answer or bears(answer, text) or bears(text, answer) for text in told)


def _read(text: str) -> Any:
    """Return the JSON in a reply, which may stand in a sentence or between fences. Raises
    ValueError."""
    starts = [place for place in (text.find("{"), text.find("[")) if place >= 0]
    inside = text[min(starts, default=0) : max(text.rfind("}"), text.rfind("]")) + 1]
    try:
        return orjson.loads(text)
    except ValueError:
        return orjson.loads(inside)


def _grounded(value: Any, known: Callable[[str], str | None]) -> Any:
    match value:
        case str():
            return known(value)
        case list():
            pairs = [(item, _grounded(item, known)) for item in value]
            return [kept for item, kept in pairs if kept is not None or item is None]
        case dict():
            return {name: _grounded(item, known) for name, item in value.items()}
    return value


def _kinds(node: dict[str, Any]) -> list[object]:
    """Return the types of a schema that takes any text, else none."""
    kinds = node.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return kinds if "string" in kinds and _BOUND.isdisjoint(node) else []


def _texts(schema: object) -> int:
    """Return how many parts of a schema take any text."""
    return sum(isinstance(node, dict) and bool(_kinds(node)) for node in _nodes(schema))


def _narrowed(node: Any, texts: Sequence[str]) -> Any:
    """Return a schema in which the parts that take any text take only these."""
    if isinstance(node, list):
        return [_narrowed(item, texts) for item in node]
    if not isinstance(node, dict):
        return node
    if kinds := _kinds(node):
        others = [{"type": kind} for kind in kinds if kind != "string"]
        return {"anyOf": [{"enum": list(texts)}, *others]}
    return {name: _narrowed(item, texts) for name, item in node.items()}


def _choices(schema: object) -> Iterator[object]:
    """Yield the strings that a schema itself offers."""
    for node in _nodes(schema):
        if isinstance(node, dict):
            offered = node.get("enum")
            yield from [*(offered if isinstance(offered, list) else ()), node.get("const")]


def _shown(passages: Sequence[RetrievedPassage]) -> list[Titled]:
    shown: list[Titled] = []
    room = EVIDENCE_LETTERS
    for passage in passages:
        room -= len(passage.title) + len(passage.text)
        if room < 0 and shown:
            break
        shown.append(Passage("", passage.title, passage.text[:EVIDENCE_LETTERS]))
    return shown

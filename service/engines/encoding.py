"""Encodes messages as ids such that no content of a message becomes a special token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from service.engines.base import GenerationRequest, Message
from service.engines.signals import Span


def simplest(messages: Sequence[Message]) -> list[Message]:
    """Return messages in the form that every chat template accepts: alternating user and assistant.

    The system messages move to the start of the first user message (without one they stay), and
    consecutive turns of one role are merged, separated by a blank line.
    """
    system = "".join(f"{m.content}\n" for m in messages if m.role == "system")
    rest = [m for m in messages if m.role != "system"]
    first = next((number for number, m in enumerate(rest) if m.role == "user"), None)
    if first is None:
        rest = list(messages)
    else:
        rest[first] = Message("user", system + rest[first].content)
    turns = groupby(rest, key=lambda m: m.role)
    return [Message(role, "\n\n".join(m.content for m in messages)) for role, messages in turns]


# private-use characters that replace a content while the template is rendered
_MARK = "\ue0d7{}\ue0d8"
_MARKS = re.compile("\ue0d7([0-9]+)\ue0d8")


class PromptEncoder:
    """Encodes prompts for one fast tokenizer.

    A chat template is rendered with placeholders for the contents. Its own text is encoded with the
    tokenizer's added tokens (`<s>`, `<|im_start|>`, …), contents with a copy of the tokenizer that
    has none. Stretches without an added token are encoded at once, so a prompt whose contents
    contain no such token gets exactly the ids that the tokenizer gives to the rendered template.
    """

    def __init__(self, tokenizer: Any, variables: Mapping[str, Any] | None = None) -> None:
        """`variables` are passed to the chat template in addition to those that every template
        has.
        """
        self.tokenizer = tokenizer
        self._variables = dict(variables or {})
        self.backend = tokenizer.backend_tokenizer
        self._added = {
            added.content: (token, added)
            for token, added in self.backend.get_added_tokens_decoder().items()
        }
        self.forbidden = frozenset(token for token, _ in self._added.values())
        names = sorted(map(re.escape, self._added), key=len, reverse=True)
        self._structure = re.compile("|".join(names) or r"(?!)")
        self._first = _without_added_tokens(self.backend, at_start=True)
        self._later = _without_added_tokens(self.backend, at_start=False)
        start = list(self.backend.encode("", add_special_tokens=True).ids)
        bos = tokenizer.bos_token_id
        self._start = start or ([] if bos is None else [bos])

    def encode(self, request: GenerationRequest) -> list[int]:
        """Return the ids of a request's messages or prompt, at least one. Raises ValueError if the
        chat template rejects the messages.
        """
        if request.prompt is not None:
            return [*self._start, *self.encode_text(request.prompt)] or [0]
        return self.encode_messages(request.messages)

    def encode_text(self, text: str, *, at_start: bool = True) -> list[int]:
        """Return the ids of plain text, in which special tokens are ordinary characters."""
        return self._encode(text, self._first if at_start else self._later)[0]

    def encode_with_spans(self, text: str, *, bos: bool) -> tuple[list[int], list[Span]]:
        """Return the ids of a raw text and their spans; a token before the text (`bos`) has span
        (0, 0).

        Tokens that share a character have the same span. The span of a word includes the space
        before it wherever its token does.
        """
        start = self._start if bos else []
        ids, spans = self._encode(text, self._first)
        return [*start, *ids], [(0, 0)] * len(start) + spans

    def _encode(self, text: str, tokenizer: Any) -> tuple[list[int], list[Span]]:
        text = text.encode("utf-8", "replace").decode("utf-8")
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if self.forbidden.isdisjoint(encoding.ids):
            return list(encoding.ids), list(encoding.offsets)
        # Where the vocabulary itself contains the special token, single characters avoid it.
        single = [
            (token, (place, place + 1))
            for place, letter in enumerate(text)
            for token in tokenizer.encode(letter, add_special_tokens=False).ids
            if token not in self.forbidden
        ]
        return [token for token, _ in single], [span for _, span in single]

    def encode_messages(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a chat up to the start of the model's reply."""
        return self._encode_pieces(_pieces(*self._render(messages))) or [0]

    def encode_turn(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """Return a training example: the ids of `encode_messages` for all messages but the last,
        and the ids of the model's reply (the last message), up to the end of its turn.

        Raises ValueError if the template rejects the messages.
        """
        asked, _ = self._render(messages[:-1])
        rendered, contents = self._render(messages, ask=False)
        head, mark, rest = rendered.rpartition(_MARK.format(len(contents) - 1))
        end = self._structure.search(rest)
        tail = mark + rest[: end.end() if end else 0]
        prompt = self._encode_pieces(_pieces(asked, contents)) or [0]
        whole = self._encode_pieces(_pieces(head + tail, contents))
        reply = whole[len(prompt) :]
        if whole[: len(prompt)] != prompt:  # the template renders a finished turn differently
            lead = head.removeprefix(asked) if head.startswith(asked) else ""
            reply = self._encode_pieces(_pieces(lead + tail, contents), at_start=False)
        eos = self.tokenizer.eos_token_id
        return prompt, reply + ([] if end or eos is None else [eos])

    def _encode_pieces(
        self, pieces: Sequence[tuple[str, bool]], *, at_start: bool = True
    ) -> list[int]:
        ids: list[int] = []
        plain = ""
        for piece, is_content in pieces:
            if is_content:
                plain += piece
                continue
            position = 0
            for match in self._structure.finditer(piece):
                token, added = self._added[match.group()]
                plain += piece[position : match.start()]
                if added.lstrip:
                    plain = plain.rstrip()
                ids += self.encode_text(plain, at_start=at_start) if plain else []
                ids.append(token)
                plain, at_start, position = "", False, match.end()
                if added.rstrip:
                    position += len(piece[position:]) - len(piece[position:].lstrip())
            plain += piece[position:]
        return ids + (self.encode_text(plain, at_start=at_start) if plain else [])

    def _render(self, messages: Sequence[Message], *, ask: bool = True) -> tuple[str, list[str]]:
        """Render the template with placeholders, and return their contents. `ask` opens the model's
        turn.
        """
        if not self.tokenizer.chat_template:
            contents = [message.content for message in messages]
            return "\n".join(_MARK.format(n) for n in range(len(contents))) + "\n", contents
        reason = "it omits a message"
        for form in (messages, simplest(messages)):
            try:
                text, contents = self._apply(form, ask)
            # templates raise any exception, some of them for system messages
            except Exception as error:
                reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
                continue
            if all(_MARK.format(n) in text for n in range(len(contents))):
                return text, contents
        raise ValueError(f"the model's chat template rejects the messages: {reason}")

    def _apply(self, messages: Sequence[Message], ask: bool) -> tuple[str, list[str]]:
        marked = [{"role": m.role, "content": _MARK.format(n)} for n, m in enumerate(messages)]
        text = self.tokenizer.apply_chat_template(
            marked, tokenize=False, add_generation_prompt=ask, **self._variables
        )
        return str(text), [message.content for message in messages]


def _pieces(text: str, contents: Sequence[str]) -> list[tuple[str, bool]]:
    """Split a rendered template into pieces: structure (False) and contents (True)."""
    pieces: list[tuple[str, bool]] = []
    for number, part in enumerate(_MARKS.split(text)):
        pieces.append((contents[int(part)], True) if number % 2 else (part, False))
    return pieces


def _without_added_tokens(backend: Any, *, at_start: bool) -> Any:
    """Return a copy of the tokenizer without added tokens, which shares its model.

    Away from the start, it does not write the word mark that some tokenizers put before the first
    word only.
    """
    plain = type(backend)(backend.model)
    plain.normalizer, plain.decoder = backend.normalizer, backend.decoder
    plain.pre_tokenizer = backend.pre_tokenizer
    if not at_start and backend.pre_tokenizer is not None:
        plain.pre_tokenizer = _going_on(backend)
    return plain


def _going_on(backend: Any) -> Any:
    """Return the pre-tokenizer for text that does not begin a prompt. It is converted through the
    JSON of a tokenizer with an empty model, because only JSON can be edited.
    """
    carrier = type(backend)(type(backend.model)())
    carrier.pre_tokenizer = backend.pre_tokenizer
    config = json.loads(carrier.to_str())
    _edit_metaspace(config["pre_tokenizer"])
    return type(backend).from_str(json.dumps(config)).pre_tokenizer


def _edit_metaspace(part: Any) -> None:
    if isinstance(part, dict):
        if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "never"
        for inner in part.get("pretokenizers") or ():
            _edit_metaspace(inner)

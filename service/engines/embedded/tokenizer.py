"""The part of a tokenizer that `PromptEncoder` uses, without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from service.engines.compiled import EmbeddedCard


class CompiledTokenizer:
    """`tokenizer.json` and the card's chat template.

    The template has the variables and functions of transformers: `messages`,
    `add_generation_prompt`, the special tokens by name, `raise_exception`, `strftime_now`, the
    filter `tojson`, and `{% generation %}`.
    """

    def __init__(self, backend: Tokenizer, card: EmbeddedCard) -> None:
        self.backend_tokenizer = backend
        self.chat_template = card.chat_template
        self.bos_token_id = card.start
        self.eos_token_id = card.ends[0] if card.ends else None
        self._special_tokens = card.special_tokens
        self._template = _environment().from_string(card.chat_template or "")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """Return the text of a chat; `variables` are passed to the template. Raises whatever the
        template raises.
        """
        if tokenize:
            raise ValueError("a chat is encoded by PromptEncoder, piece by piece")
        known = {**self._special_tokens, **variables}
        known |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        return self._template.render(known)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the tokens that training counts; here it has no
    effect.
    """

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise TemplateError(message)

"""No data can act as structure of a teacher's prompt."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.workshop.synthesis.contract import SHIPPED, Prompts, field

PIPELINES = ("compound", "efficientrag")
# A field's name at the start of a line: `Doc1:`, `<Known Info>:`, `Simple Question2:`.
NAMED = re.compile(r"^([A-Z][\w-]*(?: [A-Z]?\w+)?|<[\w ]+>):(?= |$)", re.MULTILINE)


def texts(pipeline: str) -> dict[str, str]:
    files = sorted((SHIPPED / pipeline).glob("*.txt"))
    return {path.stem: path.read_text(encoding="utf-8") for path in files}


ALL = [text for pipeline in PIPELINES for text in texts(pipeline).values()]
MARKERS = sorted({name for text in ALL for name in NAMED.findall(text)} - {"Rules"})
CONTROL = ("<|im_start|>", "<|eot_id|>", "[INST]", "</s>")


blanks = ["\n", "\n\n", " ", "\u2028", "\u00a0", "\x1b", "word", '"', ":", " : ", "："]
evil = st.lists(st.sampled_from([*MARKERS, *CONTROL, *blanks]), min_size=1, max_size=8).map("".join)


@given(evil)
def test_a_field_is_one_line_without_markers_and_tokens(text: str) -> None:
    line = field(text)
    assert len(line.splitlines()) <= 1
    for marker in MARKERS:
        assert not re.search(rf"(?<!\w){re.escape(marker)}\s*[:：]", line), marker
    assert not any(token in line for token in CONTROL)


@pytest.mark.parametrize("pipeline", PIPELINES)
@given(text=evil)
def test_a_prompt_has_the_fields_of_its_template(pipeline: str, text: str) -> None:
    prompts = Prompts(pipeline)
    for name, template in texts(pipeline).items():
        gaps = re.findall(r"\$(\{?)([a-z_]+)", template)  # in braces: whole lines
        plain, filled = (
            prompts.messages(
                name, **{gap: f"{value}\n" if lines else value for lines, gap in gaps}
            )[0].content
            for value in ("word", f"word {field(text)}")
        )
        known = [Counter(m for m in NAMED.findall(p) if m in MARKERS) for p in (plain, filled)]
        assert known[0] == known[1], name

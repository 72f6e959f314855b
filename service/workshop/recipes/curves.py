"""The loss of a run as a table (CSV) and as a drawing (SVG)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from service.core.files import write_whole
from service.workshop.recipes.recipe import LossPoint

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 40


def write_curves(folder: Path, losses: Sequence[LossPoint]) -> None:
    """Write `losses.csv` and `losses.svg`."""
    write_whole(folder / "losses.csv", loss_table(losses))
    write_whole(folder / "losses.svg", loss_plot(losses))


def loss_table(losses: Sequence[LossPoint]) -> str:
    """CSV with a head line; a rate that is not known is empty."""
    rows = (
        f"{p.step},{p.loss:.6g},{'' if p.learning_rate is None else f'{p.learning_rate:.6g}'}"
        for p in losses
    )
    return "\n".join(["step,loss,learning_rate", *rows]) + "\n"


def loss_plot(losses: Sequence[LossPoint]) -> str:
    """A line of the losses over the updates, from zero up, without those that are no numbers."""
    points = [p for p in losses if math.isfinite(p.loss)]
    last = max((p.step for p in points), default=1)
    top = max((p.loss for p in points), default=0.0) or 1.0
    line = " ".join(f"{_across(p.step, last):.1f},{_down(p.loss, top):.1f}" for p in points)
    marks = [_text(LEFT - 6, _down(top * n / 4, top) + 4, f"{top * n / 4:.3g}", "end")
             for n in range(5)]  # fmt: skip
    marks += [_text(_across(round(last * n / 4), last), HEIGHT - BOTTOM + 18,
                    str(round(last * n / 4)), "middle") for n in range(5)]  # fmt: skip
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="11">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="#888" '
            'fill="none"/>',
            *marks,
            _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "updates", "middle"),
            f'<polyline points="{line}" fill="none" stroke="#0b62a4" stroke-width="1.5"/>',
            "</svg>\n",
        ]
    )


def _across(step: int, last: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / last


def _down(loss: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * loss / top


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'

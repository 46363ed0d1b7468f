"""A fan of a few pixels for a table's cell: an SVG picture as a data URL."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from app.ui.chart_style import ACCENT, QUIET

WIDTH, HEIGHT, MARGIN = 150, 34, 2


def picture(sketch: dict[str, list[float]] | None) -> str | None:
    """The picture of what `batches.sketch` keeps: past closes, then median over the 80 % band."""
    if not sketch:
        return None
    past, steps = sketch["past"], sketch["steps"]
    start = past[-1]
    curves = {name: [start, *sketch[name]] for name in ("low", "median", "high")}
    values = [*past, *curves["low"], *curves["high"]]
    low, span = min(values), (max(values) - min(values)) or 1.0
    # The past takes two fifths of the width, whatever the horizon is.
    split = WIDTH * 0.4
    before = [split * place / max(len(past) - 1, 1) for place in range(len(past))]
    after = [split + (WIDTH - split) * step / steps[-1] for step in (0, *steps)]

    def points(xs: Sequence[float], ys: Sequence[float]) -> str:
        room = HEIGHT - 2 * MARGIN
        return " ".join(
            f"{x:.1f},{HEIGHT - MARGIN - room * (y - low) / span:.1f}"
            for x, y in zip(xs, ys, strict=True)
        )

    band = f"{points(after, curves['high'])} {points(after[::-1], curves['low'][::-1])}"
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' "
        f"viewBox='0 0 {WIDTH} {HEIGHT}'>"
        f"<polygon points='{band}' fill='{ACCENT}' fill-opacity='.28'/>"
        f"<polyline points='{points(before, past)}' fill='none' stroke='{QUIET}'/>"
        f"<polyline points='{points(after, curves['median'])}' fill='none' stroke='{ACCENT}' "
        "stroke-width='1.6'/></svg>"
    )
    return f"data:image/svg+xml;utf8,{quote(svg)}"

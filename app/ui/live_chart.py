"""A chart whose zoom survives the refreshes of a live page, and whose lines can be dragged (see
assets/live_chart.js)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go
import streamlit as st
from streamlit.components import v1, v2
from streamlit.components.v2.types import ComponentRenderer

from app.ui import chart_style

SCRIPT = Path(__file__).with_name("assets") / "live_chart.js"


@lru_cache(maxsize=1)
def _renderer() -> ComponentRenderer:
    # Declaring the folder makes the server hand out the library that Plotly's package ships, so
    # that nothing is fetched from elsewhere.
    package = find_spec("plotly")
    assert package is not None
    assert package.origin is not None
    v1.declare_component("library", path=Path(package.origin).with_name("package_data"))
    return v2.component(
        "kronos_live_chart",
        html='<div class="live-chart"></div>',
        js=SCRIPT.read_text(encoding="utf-8"),
        isolate_styles=False,
    )


def live_chart(
    figure: go.Figure, *, key: str, alt: str, moved: Callable[[float], None] | None = None
) -> None:
    """Draws the figure, or brings the one of that key up to date in place.

    `alt` is read to people who cannot see it. The zoom lasts as long as the figure's uirevision.
    With `moved` a person may drag the horizontal lines that lie above the traces; when one is let
    go, `moved` gets its new value before the page runs again, which must then draw it there.
    """

    def release() -> None:
        assert moved is not None
        moved(float(st.session_state[key]["moved"]))

    config = chart_style.CONFIG | {"edits": {"shapePosition": moved is not None}}
    _renderer()(
        key=key,
        data={"figure": figure.to_json(), "alt": alt, "config": config},
        height="content",
        on_moved_change=None if moved is None else release,
    )

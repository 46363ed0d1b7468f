"""A figure as a file: a web page that needs nothing else, or a picture."""

from __future__ import annotations

import html
import os
import shutil

import plotly.graph_objects as go
import plotly.io

BROWSERS = (
    "google-chrome-stable",
    "google-chrome",
    "chrome",
    "chromium",
    "chromium-browser",
    "msedge",
)
NO_BROWSER = (
    "A PNG is drawn by Chrome or Chromium, and none was found on this machine. Install one or name "
    "it in BROWSER_PATH, or use the camera above the chart."
)
_WHITE = {"paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff", "font": {"color": "#1d2529"}}


def browser() -> str | None:
    """The browser that kaleido would draw with, or None."""
    named = os.environ.get("BROWSER_PATH")
    if named:
        return named if shutil.which(named) else None
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def html_page(figure: go.Figure, title: str, notes: str) -> bytes:
    """A page that shows the figure without a network; title and notes are plain words."""
    shown = go.Figure(figure).update_layout(**_WHITE)
    chart = plotly.io.to_html(shown, include_plotlyjs=True, full_html=False)
    head, body = html.escape(title), html.escape(notes)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{head}</title></head>'
        '<body style="font-family: system-ui, sans-serif; margin: 2rem; color: #1d2529">'
        f'<h1 style="font-size: 1.3rem">{head}</h1>{chart}<p>{body}</p></body></html>'
    ).encode()


def png(figure: go.Figure, title: str) -> bytes:
    """A picture of 1400 × 700 points at twice the density. RuntimeError without a browser."""
    found = browser()
    if found is None:
        raise RuntimeError(NO_BROWSER)
    shown = go.Figure(figure).update_layout(
        **_WHITE, title={"text": html.escape(title), "font": {"size": 15}}, margin={"t": 70}
    )
    os.environ.setdefault("BROWSER_PATH", found)
    picture: bytes = plotly.io.to_image(shown, format="png", width=1400, height=700, scale=2)
    return picture

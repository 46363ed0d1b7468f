"""How curves are to be drawn: axis, logarithm, smoothing, clipping, as one quiet row."""

from __future__ import annotations

import streamlit as st

from app.ui.curves import AXES, SMOOTHINGS, Axis, View


def view(key: str) -> View:
    """The chosen view; what is chosen lasts as long as the page is open."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        axis: Axis = st.segmented_control(
            "Axis",
            list(AXES),
            default="step",
            required=True,
            format_func=AXES.__getitem__,
            key=f"{key}-axis",
            label_visibility="collapsed",
        )
        smooth = st.selectbox(
            "Smoothing",
            SMOOTHINGS,
            format_func=lambda width: f"Mean of {width} steps" if width else "No smoothing",
            key=f"{key}-smooth",
            label_visibility="collapsed",
            width=170,
        )
        log = st.toggle("Log axis", key=f"{key}-log")
        clip = st.toggle(
            "Clip outliers",
            key=f"{key}-clip",
            help="Fits the axes to the bulk of the values and says what that hides.",
        )
    return View(axis=axis, log=log, smooth=smooth, clip=clip, timezone=st.context.timezone)

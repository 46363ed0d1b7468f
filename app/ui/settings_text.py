"""The settings of a run as text: YAML to take away and to bring back, and the equal command."""

from __future__ import annotations

import streamlit as st

from app.ui import components
from kronos_core.training.config import TrainingConfig

TEXT_HEIGHT = 260


def both(config: TrainingConfig, command: str) -> None:
    """YAML and command below each other's tab; both have a copy button."""
    text, words = st.tabs(["As YAML", "As a command"])
    with text:
        yaml = config.to_yaml()
        st.code(yaml, language="yaml", height=TEXT_HEIGHT)
        st.download_button(
            "Download YAML",
            yaml,
            "run.yaml",
            "application/yaml",
            icon=":material/download:",
            on_click="ignore",
            key="config-yaml",
        )
    with words:
        st.code(command, language="bash", wrap_lines=True)


def uploaded(key: str) -> TrainingConfig | None:
    """Settings from a file or from pasted text, once the button is pressed."""
    file = st.file_uploader("YAML file of a run", type=["yaml", "yml"], key=f"{key}-file")
    pasted = st.text_area("Or its text", key=f"{key}-text", placeholder="epochs: 3", height=120)
    if not st.button("Fill the form", icon=":material/input:", key=f"{key}-fill"):
        return None
    try:
        text = file.getvalue().decode("utf-8") if file is not None else pasted
        return TrainingConfig.from_yaml(text)
    except (ValueError, UnicodeDecodeError) as problem:
        components.show_problem(f"These settings cannot be used: {problem}")
        return None

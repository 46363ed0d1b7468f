"""What the sessions of one server share."""

from __future__ import annotations

import streamlit as st

from app.services import models
from app.settings import Settings, get_settings
from app.storage.session import Store


def store() -> Store:
    """The open workspace of the current settings."""
    settings = get_settings()
    return _open(str(settings.workspace), settings.resolved_database_url, settings)


@st.cache_resource(show_spinner="Opening the workspace")
def _open(workspace: str, database_url: str, _settings: Settings) -> Store:
    opened = Store(_settings)
    opened.migrate()
    models.ensure_builtin(opened)
    return opened

"""The dashboard's entry script: page frame and navigation."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import streamlit as st  # noqa: E402

from app.services import runs, status  # noqa: E402
from app.ui import components, run_memory  # noqa: E402
from app.ui.resources import store  # noqa: E402

PAGES = ROOT / "pages"
RECENT_RUNS = 30
ASSETS = ROOT / "app" / "ui" / "assets"


def navigation() -> st.Page:
    """The page of the current URL."""

    def page(name: str, title: str, icon: str, *, default: bool = False) -> st.Page:
        return st.Page(
            PAGES / f"{name}.py",
            title=title,
            icon=f":material/{icon}:",
            url_path=name,
            default=default,
        )

    return st.navigation(
        {
            "": [page("home", "Home", "home", default=True)],
            "Data": [page("datasets", "Datasets", "candlestick_chart")],
            "Models": [
                page("models", "Models", "deployed_code"),
                page("finetune", "Fine-tune", "tune"),
                page("runs", "Runs", "monitoring"),
            ],
            "Forecasts": [
                page("forecast", "Forecast", "insights"),
                page("compare", "Compare", "compare_arrows"),
            ],
            "Learn": [page("teacher_forcing", "Teacher forcing", "school")],
        },
        expanded=True,
    )


# A Material icon would be fetched from Google for the browser's tab; a file of ours is not.
st.set_page_config(page_title="Kronos Workbench", page_icon=str(ASSETS / "icon.svg"), layout="wide")
st.logo(str(ASSETS / "logo.svg"), icon_image=str(ASSETS / "icon.svg"), size="large")
st.html(ASSETS / "style.css")
current = navigation()
workspace = store()


@st.fragment(run_every=5)
def foot() -> None:
    components.status_line(status.status(workspace))
    for run in run_memory.just_ended(runs.list_runs(workspace, RECENT_RUNS)):
        components.toast_ended(run)


with st.sidebar:
    foot()
current.run()

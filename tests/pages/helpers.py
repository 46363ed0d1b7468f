"""What the page tests do with a page."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Button

from app.services import forecasts
from app.storage import Store
from app.storage.models import PENDING_FORECAST_STATES, Forecast

MAIN = Path(__file__).parents[2] / "app" / "main.py"


def opened(name: str, **parameters: str) -> AppTest:
    """A page by the name of its file, with what its URL says."""
    page = AppTest.from_file(str(MAIN), default_timeout=60).run()
    page.switch_page(f"../pages/{name}.py")
    for key, value in parameters.items():
        page.query_params[key] = value
    return checked(page.run())


def checked(page: AppTest) -> AppTest:
    """The page, after making sure that nothing on it broke."""
    assert not page.exception, [error.message for error in page.exception]
    return page


def words(page: AppTest) -> str:
    """All that a page says in words."""
    kinds = (page.title, page.subheader, page.markdown, page.caption, page.error, page.info)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def button(page: AppTest, label: str) -> Button:
    """A button by its label."""
    return next(found for found in page.button if found.label == label)


def field(fields: Sequence[Any], label: str) -> Any:
    """A widget of one kind by its label."""
    return next(found for found in fields if found.label == label)


def settled(store: Store, forecast_id: str) -> Forecast:
    """The forecast once it is drawn."""
    deadline = time.monotonic() + 60
    while (row := forecasts.get(store, forecast_id)).state in PENDING_FORECAST_STATES:
        assert time.monotonic() < deadline, f"still {row.state}"
        time.sleep(0.05)
    return row

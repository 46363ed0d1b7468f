"""The layers import downwards only, read from the import statements."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What each part may import of ours; a part may always import itself.
MAY_IMPORT = {
    "kronos_core": set(),
    "app/storage": {"kronos_core", "app.settings"},
    "app/jobs": {"kronos_core", "app.settings", "app.storage", "app.logs"},
    "app/services": {"kronos_core", "app.settings", "app.storage", "app.jobs"},
    "app/ui": {"kronos_core", "app.settings", "app.storage", "app.services"},
    "pages": {"kronos_core", "app.settings", "app.storage.models", "app.services", "app.ui"},
}
MAY_IMPORT_STREAMLIT = {"pages", "app/ui", "app/main.py", "app/server.py"}


def python_files() -> list[Path]:
    return [
        path
        for folder in ("kronos_core", "app", "pages")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module


def is_under(path: Path, place: str) -> bool:
    relative = path.relative_to(ROOT).as_posix()
    return relative == place or relative.startswith(f"{place}/")


@pytest.mark.parametrize("path", python_files(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports(path: Path) -> None:
    names = list(imports(path))
    top = {name.split(".")[0] for name in names}
    if not any(is_under(path, place) for place in MAY_IMPORT_STREAMLIT):
        assert "streamlit" not in top
    if not is_under(path, "app/storage"):
        assert not top & {"sqlalchemy", "alembic"}
    place = next((place for place in MAY_IMPORT if is_under(path, place)), None)
    if place is None:
        return  # app/server.py, app/main.py and the command line stand above all parts
    allowed = MAY_IMPORT[place] | {place.replace("/", ".")}
    for name in names:
        if name.split(".")[0] in {"app", "pages", "kronos_core"}:
            assert any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed), name


def test_no_module_is_named_after_a_library() -> None:
    libraries = {
        "torch",
        "streamlit",
        "plotly",
        "pandas",
        "numpy",
        "sqlalchemy",
        "alembic",
        "types",
    }
    assert not [path for path in python_files() if path.stem in libraries]

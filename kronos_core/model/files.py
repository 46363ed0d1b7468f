"""Names and checks of the files that make up a model folder."""

import json
from pathlib import Path
from typing import Any

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


class BundleError(ValueError):
    """A model that cannot be loaded or saved; the message says which file and what to do."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; BundleError names the file otherwise."""
    if not path.is_file():
        raise BundleError(f"{path} is missing: a model folder needs {path.name}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BundleError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BundleError(f"{path} must hold a JSON object")
    return value

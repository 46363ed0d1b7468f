"""YAML text of settings, read strictly: no repeated keys, no dates made of text."""

from __future__ import annotations

import re
from typing import Any

import yaml

_FLOAT = re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    """The safe loader, with 1e-4 as a number, dates as text and repeated keys as errors."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise ValueError(f"line {line} sets {key} a second time; keep one of the two")
            seen.add(key)
        return super().construct_mapping(node, deep)


# Timestamps are left out: a date is text here. YAML 1.1 takes 1e-4 (without a dot) for text.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in entries if not tag.endswith(":timestamp")]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read_yaml(text: str) -> dict[str, Any]:
    """The mapping of names to values in a YAML document; an empty document is an empty mapping.

    Raises:
        ValueError: text that is no YAML, with line and column; no mapping; a repeated key.
    """
    try:
        found = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"the settings are not valid YAML, {where}{error.problem}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"the settings are not valid YAML: {error}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError(
            'the settings must be lines of "name: value" such as "epochs: 3", '
            f"got a {type(found).__name__}"
        )
    return found


def write_yaml(values: dict[str, Any]) -> str:
    """A YAML document of plain values, keys in their order."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)

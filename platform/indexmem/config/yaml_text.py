"""YAML as specs use it: one document, and no key twice in a mapping."""

from __future__ import annotations

from typing import Any

import yaml

# What PyYAML lets through: a month 13 is a ValueError, a thousand brackets are a RecursionError, ...
RAISED = (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)


class InvalidYaml(ValueError):
    """The message says where and what."""


def parse_yaml(text: str) -> Any:
    """What a text says. Raises InvalidYaml.

    A key that a mapping says twice is an error, as YAML itself has it; PyYAML keeps the last one without a word.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _check(node, ())
        return None if node is None else loader.construct_document(node)
    except RAISED as error:
        raise InvalidYaml(str(error) or type(error).__name__) from None


def _check(node: yaml.Node | None, above: tuple[yaml.Node, ...]) -> None:
    """Raises ValueError for a key that comes twice, and for a node that holds itself."""
    if node in above:
        assert node is not None
        raise ValueError(f"a value holds itself{_place(node)}")
    if isinstance(node, yaml.MappingNode):
        seen: set[tuple[str, str]] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise ValueError(f"the key '{key.value}' comes twice{_place(key)}")
                seen.add((key.tag, key.value))
            _check(value, (*above, node))
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(item, (*above, node))


def _place(node: yaml.Node) -> str:
    return f", line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"

"""Spec file + `extends` + `a.b=c` overrides -> one validated Experiment.

Raw mappings are merged in order (extended files < file < overrides; of several extended files later ones go over
earlier ones) and validated once at the end, so no layer can half-apply. Every complaint names the file, the dotted key,
and the nearest valid key or allowed values.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError

from indexmem.config.naming import with_filled_name
from indexmem.config.paths import absolute_paths, beside
from indexmem.config.schema import Experiment, GridConfig, ModelConfig
from indexmem.config.section import Section
from indexmem.config.spec import as_said
from indexmem.errors import UserError
from indexmem.unicode import well_formed

Spec = TypeVar("Spec", bound=Section)
# What PyYAML raises or lets through: a month 13 is a ValueError, a thousand brackets are a RecursionError, ...
YAML_FAULTS = (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
SECRET_WORDS = ("password", "secret", "token_id", "api_key", "apikey", "access_key", "credential")


def load(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read a spec. Raises UserError on a missing file, bad YAML, unknown key or bad value."""
    return load_as(Experiment, path, overrides)


def load_as(schema: type[Spec], path: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """Read a spec that has more sections than `Experiment`. Raises UserError as `load` does."""
    raw = with_filled_name(raw_spec(path, overrides), ModelConfig().id, GridConfig().length)
    return validate_as(schema, absolute_paths(raw), str(path))


def raw_spec(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What a file, the files that it extends and overrides say together, not validated yet."""
    return _overridden(_read(Path(path), seen=()), overrides)


def validate(raw: Mapping[str, Any], source: str) -> Experiment:
    """Validate a merged mapping; `source` is named in complaints."""
    return validate_as(Experiment, raw, source)


def validate_as(schema: type[Spec], raw: Mapping[str, Any], source: str) -> Spec:
    """Validate a mapping as any schema. Raises UserError that names the source, the key and what is valid there."""
    for key, value in _settings(raw):
        if any(word in key.lower() for word in SECRET_WORDS):
            raise UserError(
                f"{source}: '{key}' looks like a secret. Specs are published to MLflow; use the environment."
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{source}: '{key}': input should be a finite number, got {value}.")
        if isinstance(value, str) and ("\0" in value or well_formed(value) != value):
            raise UserError(f"{source}: '{key}' is {value!a}, which is no text that a file can hold.")
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        raise UserError("\n".join(f"{source}: {_explain(item, schema)}" for item in error.errors())) from None


def with_overrides(experiment: Experiment, overrides: Sequence[str]) -> Experiment:
    """A re-validated copy with `a.b=c` overrides applied (pydantic's own model_copy does not validate)."""
    return validate(_overridden(as_said(experiment), overrides), "overrides")


def with_settings(experiment: Experiment, settings: Mapping[str, Any], source: str) -> Experiment:
    """A re-validated copy with settings, by their dotted names; `source` is named in complaints (UserError)."""
    return validate(absolute_paths(_merge(as_said(experiment), by_section(settings))), source)


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    try:
        path = path.resolve()
        found = path.is_file()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        raise UserError(f"'{path!s:.200}' cannot be the name of a spec file: {error}.") from None
    if path in seen:
        raise UserError(f"'extends' goes in a circle: {' -> '.join(p.name for p in (*seen, path))}")
    if not found:
        siblings = [p.name for p in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, siblings, n=1)
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        raise UserError(f"No spec file at {path}.{hint}")
    try:
        raw = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error.reason} at byte {error.start}. Save it as UTF-8.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except InvalidYaml as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold a mapping such as 'model: {{id: ...}}', got {type(raw).__name__}.")
    raw = beside(raw, path.parent)
    parents = raw.pop("extends", None)
    merged: dict[str, Any] = {}
    for parent in parents if isinstance(parents, list) else [] if parents is None else [parents]:
        merged = _merge(merged, _read(path.parent / str(parent), (*seen, path)))
    return _merge(merged, raw)


def _overridden(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not all(key.split(".")):
            raise UserError(f"Override '{text}' is not of the form a.b=value. Example: grid.samples=10")
        try:
            parsed = parse_yaml(value)
        except InvalidYaml as error:
            raise UserError(
                f"Override '{text:.200}': the value is not valid YAML. Example: grid.ratios='[0.5, 0.9]'\n{error}"
            ) from None
        raw = _merge(raw, by_section({key: parsed}))
    return raw


def by_section(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted names, as a spec file writes them: {'indexer.dim': 8} -> {'indexer': {'dim': 8}}."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        for part in reversed(name.split(".")):
            value = {part: value}
        found = _merge(found, value)
    return found


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Recursive union; mappings merge, everything else (lists and an empty mapping, too) is replaced by `top`."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(below or {}, value) if both and value else value
    return merged


def _settings(raw: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a mapping or list, with its dotted name."""
    pairs = raw.items() if isinstance(raw, Mapping) else enumerate(raw) if isinstance(raw, (list, tuple)) else ()
    for key, value in pairs:
        yield f"{name}{key}", value
        yield from _settings(value, f"{name}{key}.")


def _explain(item: Any, schema: type[Section]) -> str:
    location = tuple(part for part in item["loc"] if not str(part).startswith("function-"))
    dotted = ".".join(map(str, location)) or "spec"
    if item["type"] == "extra_forbidden":
        section = _section(schema, location[:-1])
        if str(location[-1]) in section.gone:
            return f"'{dotted}' is no setting any more. {section.gone[str(location[-1])]}"
        valid = list(section.model_fields)
        near = difflib.get_close_matches(str(location[-1]), valid, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        return f"unknown key '{dotted}'.{hint} Valid keys here: {', '.join(valid)}."
    message = item["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    got = "" if item["type"] == "missing" else f", got {item['input']!r}"
    return f"'{dotted}': {message}{got}."


def _section(schema: type[Section], location: Sequence[str | int]) -> type[Section]:
    """The section at `location`, following nested models and tuples of models."""
    model = schema
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        options = [annotation, *get_args(annotation)]
        model = next(o for o in options if isinstance(o, type) and issubclass(o, Section))
    return model


class InvalidYaml(ValueError):
    """The message says where and what."""


def parse_yaml(text: str) -> Any:
    """What a text says. Raises InvalidYaml.

    A key that a mapping says twice is an error, as YAML itself has it; PyYAML keeps the last one without a word.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _check_node(node, ())
        return None if node is None else loader.construct_document(node)
    except YAML_FAULTS as error:
        raise InvalidYaml(str(error) or type(error).__name__) from None


def _check_node(node: yaml.Node | None, above: tuple[yaml.Node, ...]) -> None:
    """Raises ValueError for a key that comes twice, and for a node that holds itself."""
    if node in above:
        assert node is not None
        raise ValueError(f"a value holds itself{_position(node)}")
    if isinstance(node, yaml.MappingNode):
        seen: set[tuple[str, str]] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise ValueError(f"the key '{key.value}' comes twice{_position(key)}")
                seen.add((key.tag, key.value))
            _check_node(value, (*above, node))
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_node(item, (*above, node))


def _position(node: yaml.Node) -> str:
    return f", line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"

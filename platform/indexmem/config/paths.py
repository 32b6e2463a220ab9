"""Files that a spec names: where they are looked for, and their absolute paths, since workers run in other folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from indexmem.config.reference import with_files
from indexmem.config.text import BUILT_IN
from indexmem.files import exists, expanded

PATHS = (
    ("model", "id"),
    ("distill", "texts"),
    ("distill", "start_from"),
    ("grid", "haystack"),
    ("indexer", "checkpoint"),
    ("run", "root"),
    ("pretrain", "start_from"),
)


def absolute_paths(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Relative paths that exist in the working folder become absolute. Names stay as they are, those of built-in texts
    even beside a folder of that name (`./code` is the folder).
    """
    merged = with_files(raw, lambda file: str(expanded(file).absolute()))
    for section, key in PATHS:
        if isinstance(merged.get(section), Mapping) and key in merged[section]:
            names = BUILT_IN if key in ("texts", "haystack") else ()
            merged[section] = {**merged[section], key: _absolute(merged[section][key], names)}
    return with_benchmark_paths(merged, _absolute)


def beside(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Of a spec file in `folder`: files of code, and what its benchmarks name and lies there, become absolute."""

    def there(path: Any) -> Any:
        found = isinstance(path, str) and path and exists(folder / expanded(path))
        return str((folder / expanded(path)).absolute()) if found else path

    return with_benchmark_paths(with_files(raw, lambda file: str((folder / expanded(file)).resolve())), there)


def with_benchmark_paths(raw: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The mapping with `params.path` of each benchmark changed; what is no list of benchmarks is left as it is."""
    grid = raw.get("grid")
    if not isinstance(grid, Mapping) or not isinstance(grid.get("benchmarks"), list):
        return dict(raw)

    def changed(entry: Any) -> Any:
        params = entry.get("params") if isinstance(entry, Mapping) else None
        if not isinstance(params, Mapping) or "path" not in params:
            return entry
        return {**entry, "params": {**params, "path": change(params["path"])}}

    return {**raw, "grid": {**grid, "benchmarks": [changed(entry) for entry in grid["benchmarks"]]}}


def _absolute(value: Any, names: Sequence[str] = ()) -> Any:
    if isinstance(value, list):
        return [_absolute(item, names) for item in value]
    if isinstance(value, Mapping):
        return {name: _absolute(item, names) if name == "name" else item for name, item in value.items()}
    is_path = isinstance(value, str) and value and value not in names and exists(expanded(value))
    return str(expanded(value).absolute()) if is_path else value

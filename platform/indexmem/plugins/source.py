"""What computes a row, as a hash: of somebody's own code and the modules of its own package that it needs.

Comments and formatting do not count; every other edit gives new rows. Code that lies outside of the package (its
dependencies, files that it reads) is not looked at.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from indexmem.config.spec import content_hash


def code_of(value: Any, named_in: str = "") -> str:
    """Hash of the source behind a class or function; "" for our own.

    `named_in`: the module that a reference names, for a value that does not say where it is defined.
    """
    module = getattr(value, "__module__", None) or named_in
    if named_in and module.partition(".")[0] != named_in.partition(".")[0]:
        module = named_in
    return "" if module.partition(".")[0] == "indexmem" else _hash(sys.modules[module])


@cache  # of what was imported: a file edited later changes nothing in this process
def _hash(module: ModuleType) -> str:
    return content_hash({name: normalised(ast.parse(text)) for name, text in _needed(module.__name__)})


def joined(*codes: str) -> str:
    """One hash of several; "" where all code is ours."""
    theirs = [code for code in codes if code]
    return theirs[0] if len(theirs) == 1 else content_hash(theirs) if theirs else ""


def normalised(node: Any) -> Any:
    """A syntax tree as JSON, alike in all versions of Python: what is empty is left out."""
    if isinstance(node, ast.AST):
        fields = {name: normalised(value) for name, value in ast.iter_fields(node) if value not in (None, [])}
        return [type(node).__name__, fields]
    if isinstance(node, list):
        return [normalised(item) for item in node]
    return node if isinstance(node, str | int | bool) or node is None else repr(node)


def _needed(module: str) -> Iterator[tuple[str, str]]:
    """(name, source) of a module and of the modules of its own package that it imports, and those that these do."""
    package = module.partition(".")[0]
    seen, queue = set(), [module]
    while queue:
        name = queue.pop()
        path = _path(package, name)
        if name in seen or path is None:
            continue
        seen.add(name)
        text = path.read_text(encoding="utf-8")
        yield ("" if "." not in name and path.name != "__init__.py" else name), text
        queue += sorted(_imported(ast.parse(text), name, path.name == "__init__.py", package))


def _imported(tree: ast.Module, module: str, is_package: bool, package: str) -> set[str]:
    """Names of the package's modules that a module may import; some name no module but what is in one."""
    found = set()
    parts = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.partition(".")[0] == package}


def _path(package: str, module: str) -> Path | None:
    """The file of a package's module, without importing it."""
    top = sys.modules[package]
    if not hasattr(top, "__path__"):  # a single file
        return Path(str(top.__file__)) if module == package else None
    for folder in top.__path__:
        place = Path(folder, *module.split(".")[1:])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file() and (module != package or path.name == "__init__.py"):
                return path
    return None

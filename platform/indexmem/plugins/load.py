"""From a name in a spec to somebody's own method, benchmark, memory, scorer or text.

A name is a reference (config/reference.py), or that of an entry point in the group `indexmem.<kind>`. Each registry
asks here for names that are none of its own.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from indexmem.config.reference import PluginKind, Reference, entry_points_of, without_folders
from indexmem.errors import UserError
from indexmem.plugins.source import code_of

HOW = "PACKAGE.MODULE:NAME and ./FILE.py:NAME name one of your own."


@dataclass(frozen=True)
class Found:
    """What a name stands for, imported."""

    value: Any
    reference: Reference
    module: str  # that the reference names, as it is called in this process

    @property
    def code(self) -> str:
        """Hash of the source: part of the identity of what it computes."""
        return code_of(self.value, self.module)

    @property
    def said(self) -> str:
        """What its docstring says first."""
        return (inspect.getdoc(self.value) or "").partition("\n")[0].rstrip(".")


def find(kind: PluginKind, name: str) -> Found | None:
    """None for a name that is neither a reference nor an entry point.

    Raises UserError where the module, the file or the attribute is missing, or where importing it fails.
    """
    reference = Reference.parse(name)
    if reference is None:
        point = entry_points_of(kind).get(name)
        reference = Reference.parse(point.value) if point is not None else None
        if point is None or reference is None:
            return None
    module = _from_file(reference) if reference.in_file else _from_package(reference)
    try:
        value = getattr(module, reference.attribute)
    except AttributeError:
        hint = _nearest(reference.attribute, (each for each in vars(module) if not each.startswith("_")))
        raise UserError(f"'{name}': {reference.place} has no '{reference.attribute}'.{hint}") from None
    return Found(value, reference, module.__name__)


def origin_of(reference: Reference) -> str:
    """The file, or the package and its version where it is installed."""
    if reference.in_file:
        return reference.place
    from importlib.metadata import packages_distributions, version

    names = packages_distributions().get(reference.package, ())
    return " ".join([names[0], version(names[0])]) if names else reference.package


def unknown_name(kind: PluginKind, what: str, name: str, ours: Iterable[str], more: str = "") -> UserError:
    """What is said of a name that stands for nothing. `what`: "method", ...; `more`: what else may be written."""
    names = [*ours, *entry_points_of(kind)]
    hint = _nearest(name, names)
    return UserError(
        f"Unknown {what} '{without_folders(name)}'.{hint} {kind.capitalize()}: {', '.join(names)}{more}. {HOW}"
    )


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f" Did you mean '{near[0]}'?" if near else ""


def _from_package(reference: Reference) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(reference.place)
    except ModuleNotFoundError as error:
        missing = error.name or reference.place
        if reference.place == missing or reference.place.startswith(f"{missing}."):
            raise UserError(
                f"'{reference.place}:{reference.attribute}': there is no module '{missing}' here. Install its package "
                "(pip install -e FOLDER), or name a file: ./FILE.py:NAME."
            ) from None
        raise _failed(reference, error) from error
    except Exception as error:  # whatever a module does when it is imported
        raise _failed(reference, error) from error


def _from_file(reference: Reference) -> ModuleType:
    """The module of a file as it stands: named after its content, so that an edited one is another module."""
    path = Path(reference.place).expanduser().absolute()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"'{reference.place}:{reference.attribute}': the file cannot be read ({error.strerror}). Relative files "
            "are looked for beside the spec, and those of overrides in the working folder."
        ) from None
    digest = hashlib.sha256(str(path).encode() + b"\0" + content).hexdigest()[:12]
    name = f"indexmem_plugin_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        exec(compile(content, str(path), "exec"), vars(module))
    except Exception as error:  # whatever a file does when it is run
        del sys.modules[name]
        raise _failed(reference, error) from error
    return module


def _failed(reference: Reference, error: Exception) -> UserError:
    trace, place = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(reference.place.replace(".", "/").removesuffix("/py")[-20:]):
            place = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return UserError(
        f"'{reference.place}:{reference.attribute}' cannot be imported{place}: {type(error).__name__}: {error}"
    )

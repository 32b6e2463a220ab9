"""What the verbs that take a spec have in common."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from indexmem.config.load import load
from indexmem.config.schema import Experiment

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def add_spec_verb(verbs: Verbs, name: str, text: str, *, starts_ray: bool = False) -> argparse.ArgumentParser:
    """A verb that takes SPEC and overrides; with `starts_ray` also --dry-run and --address."""
    verb = verbs.add_parser(name, help=text, description=text)
    add_spec_arguments(verb)
    if starts_ray:
        verb.add_argument(
            "--dry-run", action="store_true", help="print the plan; start nothing, store nothing but caches"
        )
        verb.add_argument("--address", help="Ray cluster; default: RAY_ADDRESS, else a private one on this machine")
    return verb


def add_spec_arguments(verb: argparse.ArgumentParser) -> None:
    """SPEC, overrides and --model."""
    verb.add_argument("spec", help="YAML spec, for example sweeps/smoke.yaml")
    verb.add_argument("overrides", nargs="*", metavar="key=value", help="for example grid.samples=10")
    verb.add_argument("--model", help="short for model.id=...: a built-in model, a folder or a hub id")


def load_spec(arguments: argparse.Namespace) -> Experiment:
    """The spec that such a verb was given. Raises UserError for a spec that is not valid."""
    overrides = list(arguments.overrides)
    if arguments.model:
        overrides.append(f"model.id={arguments.model}")
    return load(arguments.spec, overrides)

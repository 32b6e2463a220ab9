"""Commands as documentation and manifests show them, and parsers that take them without running them."""

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
from ray.scripts.scripts import cli as ray_cli

from indexmem.cli import make_parser
from indexmem_testbed.cli import make_parser as testbed_parser

REPOSITORY = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:^    \S.*\n?)(?:^(?:    .*)?\n?)*", re.MULTILINE)  # indented by four spaces
INLINE = re.compile(r"`((?:indexmem|ray) [^`\n]+)`")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
PLACEHOLDER = re.compile(r"…|\.\.\.|\bVERB\b")
SEPARATORS = {"&&", "||", "|", ";"}


def commands(block: str) -> Iterator[list[str]]:
    """The commands of a shell text, as words; an open quotation or a backslash goes on in the next line."""
    pending = ""
    for line in block.splitlines():
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:
            pending += "\n"
            continue
        pending = ""
        yield from _simple_commands(words)


def _simple_commands(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, ";"]:
        if word in SEPARATORS:
            while command and ASSIGNMENT.match(command[0]):
                command.pop(0)
            if command:
                yield command
            command = []
        else:
            command.append(word)


def documented(page: str) -> Iterator[tuple[list[str], bool]]:
    """Commands of a Markdown page that a parser here knows, and whether in running text, perhaps cut short."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    for block in BLOCK.findall(text):
        yield from ((words, False) for words in commands(block) if _known(words))
    for code in INLINE.findall(text):
        yield from ((words, True) for words in commands(code) if _known(words))


def _known(words: list[str]) -> bool:
    ours = words[0] in ("indexmem", "ray") or words[:3] == ["python", "-m", "indexmem"]
    script = words[0] == "python" and len(words) > 1 and words[1].startswith("jobs/")
    return (ours or script) and not PLACEHOLDER.search(" ".join(words))


def complaint(words: list[str]) -> str | None:
    """What the command's own parser says is wrong with it; None: nothing."""
    if words[0] == "ray":
        return _complaint_of_ray(words[1:])
    if words[0] == "indexmem":
        return _complaint_of_indexmem(words[1:])
    if words[1] == "-m":
        return _complaint_of_indexmem(words[3:])
    script = (REPOSITORY / words[1]).read_text(encoding="utf-8")
    if "indexmem_testbed" in script:
        return _complaint_of(testbed_parser(), words[2:])
    return _complaint_of_indexmem([re.search(r'main\(\["(\w+)"', script)[1], *words[2:]])


def _complaint_of_indexmem(words: list[str]) -> str | None:
    return _complaint_of(make_parser(), words)


def _complaint_of(parser: argparse.ArgumentParser, words: list[str]) -> str | None:
    try:
        _, rest = parser.parse_known_args(words)
    except (SystemExit, argparse.ArgumentError) as error:
        return None if getattr(error, "code", 1) == 0 else f"{parser.prog} {' '.join(words)}: not accepted"
    unknown = [word for word in rest if "=" not in word or word.startswith("-")]
    return f"unrecognized: {unknown}" if unknown else None


def _complaint_of_ray(words: list[str]) -> str | None:
    command: click.Command = ray_cli
    while isinstance(command, click.Group) and words:
        found = command.commands.get(words[0])
        if found is None:
            return f"ray has no command {words[0]!r}"
        command, words = found, words[1:]
    if isinstance(command, click.Group):
        return None
    try:
        entrypoint = command.make_context(command.name, list(words)).params.get("entrypoint")
    except click.UsageError as error:
        return error.format_message()
    inner = list(entrypoint or ())
    if len(inner) == 1:
        inner = shlex.split(inner[0])
    return complaint(inner) if inner and _known(inner) else None

"""What the documentation names exists: files, links, and in docs/method.md classes, functions and settings."""

import ast
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from indexmem.config.schema import Experiment

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "platform" / "indexmem"
METHOD = REPOSITORY / "docs" / "method.md"
PAGES = [*sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "README.md"]
ROOTS = (PACKAGE, REPOSITORY, REPOSITORY / "sweeps" / "presets")  # of the paths that the page names
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
FILE = re.compile(r"[\w./*-]+\.(?:py|yaml)|[\w./-]+/")
DOTTED = re.compile(r"([A-Za-z_]\w*)\.(\w+)(?=$|[\s=:(])")
PATH_AND_NAMES = re.compile(r"((?:`\w+`(?:, | and ))+)`([\w/]+\.py)`")


def members(node: ast.AST) -> set[str]:
    """What a module or class defines itself, its annotated and assigned names included."""
    names: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            names.add(child.name)
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            names.add(child.id)
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            names.add(child.attr)
    return names


def index() -> dict[str, set[str]]:
    """Members by class name and by module name; a class has those of its bases in the package, too."""
    found: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in (*PACKAGE.rglob("*.py"), *(REPOSITORY / "tests" / "support").glob("*_reference.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found.setdefault(path.stem, set()).update(members(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(members(node))
                bases.setdefault(node.name, set()).update(ast.unparse(base).split("[")[0] for base in node.bases)
    changed = True
    while changed:
        changed = False
        for name, parents in bases.items():
            inherited = set().union(*(found.get(parent, set()) for parent in parents)) - found[name]
            found[name] |= inherited
            changed |= bool(inherited)
    return found


def is_setting(dotted: str) -> bool:
    model: type[BaseModel] = Experiment
    for part in dotted.split("."):
        if not (isinstance(model, type) and issubclass(model, BaseModel) and part in model.model_fields):
            return False
        model = model.model_fields[part].annotation
    return True


def unknown_names(text: str) -> list[str]:
    """Dotted names in backticks that are neither a member of a class or module of the package nor a setting."""
    known = index()
    return [
        match[0]
        for code in CODE.findall(text)
        if not FILE.fullmatch(code) and (match := DOTTED.match(code))
        if match[2] not in known.get(match[1], set()) and not is_setting(match[0])
    ]


def missing_files(text: str) -> list[str]:
    """Paths in backticks that match nothing in the package or the repository."""
    named = [code for code in CODE.findall(text) if FILE.fullmatch(code)]
    return [name for name in named if not any(list(root.glob(name.rstrip("/"))) for root in ROOTS)]


def misplaced_names(text: str) -> list[str]:
    """Names that are said to be in a file, as `name`, `path.py`, and are not."""
    wrong = []
    for names, path in PATH_AND_NAMES.findall(text):
        file = next((root / path for root in ROOTS if (root / path).exists()), None)
        defined = members(ast.parse(file.read_text(encoding="utf-8"))) if file else set()
        wrong += [f"{name} in {path}" for name in CODE.findall(names) if name not in defined]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_to_a_file_leads_somewhere(page):
    targets = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in targets if not (page.parent / link).exists()] == []


def test_every_file_that_the_method_page_names_exists():
    assert missing_files(METHOD.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", ["walk.md", "reading.md"])
def test_every_file_on_the_way_through_the_code_exists(page):
    assert missing_files((REPOSITORY / "docs" / page).read_text(encoding="utf-8")) == []


def test_the_walk_names_what_is_called_where_it_is_and_fits_one_screen():
    text = (REPOSITORY / "docs" / "walk.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    rows = [line.split("|")[2:4] for line in text.splitlines() if line.startswith("|") and "`" in line]
    wrong = []
    for where, calls in rows:
        files = [PACKAGE / code for code in CODE.findall(where)]
        known = set().union(*(members(ast.parse(file.read_text(encoding="utf-8"))) for file in files))
        wrong += [name for code in CODE.findall(calls) for name in code.split(".") if name not in known]
    assert wrong == []


def test_every_name_on_the_method_page_is_a_member_or_a_setting():
    assert unknown_names(METHOD.read_text(encoding="utf-8")) == []


def test_every_name_on_the_method_page_is_defined_where_it_says():
    assert misplaced_names(METHOD.read_text(encoding="utf-8")) == []


def test_what_does_not_exist_is_found():
    assert missing_files("`engine/cache.py`, `engine/gone.py`, `tests/eviction/test_*method*.py`, `tests/no_*.py`") == [
        "engine/gone.py",
        "tests/no_*.py",
    ]
    text = "`Indexer.features`, `Indexer.gone`, `dense_reference.dense_kl`, `target.scale=model`, `target.gone: 4`"
    assert unknown_names(text) == ["Indexer.gone", "target.gone"]
    assert misplaced_names("`rank`, `gone`, `eviction/ranking.py`") == ["gone in eviction/ranking.py"]

"""Every command of the documentation that has a parser here is accepted by it."""

import pytest
from documented import REPOSITORY, commands, complaint, documented

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
LEAST = {"using.md": 15, "cluster.md": 5, "operations.md": 15}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_commands_are_accepted(page, capsys):
    found = list(documented(page.read_text(encoding="utf-8")))
    assert len(found) >= LEAST.get(page.name, 0)
    complaints = [f"{' '.join(words)}: {wrong}" for words, cut in found if not cut and (wrong := complaint(words))]
    # In running text a command may be named without what it takes; what it takes must still be right.
    named = [
        f"{' '.join(words)}: {wrong} {said}"
        for words, cut in found
        if cut and (wrong := complaint(words)) and "required" not in (said := capsys.readouterr().err)
        if "Missing argument" not in wrong
    ]
    assert complaints + named == []


def test_commands_of_a_shell_text():
    text = "A=1 indexmem eval s.yaml 'grid.ratios=[0.5, 0.9]' && ray up x  # c\nray job submit -- \\\n  python '\n'\n"
    assert list(commands(text)) == [
        ["indexmem", "eval", "s.yaml", "grid.ratios=[0.5, 0.9]"],
        ["ray", "up", "x"],
        ["ray", "job", "submit", "--", "python", "\n"],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "indexmem evaluate s.yaml",
        "indexmem eval s.yaml --adress x",
        "python jobs/eval_grid.py s.yaml --dryrun",
        "ray job submitt -- x",
        "ray job submit --workdir . -- python x.py",
        "ray job submit --working-dir . -- python jobs/distill.py",
        "ray job submit --working-dir . -- python -m indexmem eval s.yaml --follow",
        "indexmem submit train s.yaml",
    ],
)
def test_a_wrong_command_is_noticed(text):
    ((words),) = commands(text)
    assert complaint(words)

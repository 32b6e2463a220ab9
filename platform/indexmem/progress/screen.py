"""Progress as a picture that redraws itself, for terminals: bar, speed, scores so far, the last failures."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from indexmem.progress.status import RunStatus, ScoresSoFar, size

MAX_METHODS, MAX_BUDGETS, MAX_FAILURES = 14, 8, 3  # so that the picture fits a usual terminal


class Screen:
    """Draws a status in place; what is printed meanwhile scrolls by above it."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title, self._last = title, ""
        self._console = console or Console(stderr=True, highlight=False)
        # Redrawn when there is news, so no thread is needed that draws.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def __call__(self, status: RunStatus) -> None:
        self._last = status.line()
        self._live.update(draw_status(self._title, status), refresh=True)

    def close(self) -> None:
        """Leaves one line of it."""
        self._live.stop()
        if self._last:
            self._console.print(Text(f"  {self._last}"), soft_wrap=True)


def draw_status(title: str, status: RunStatus) -> RenderableType:
    """What the terminal shows. Text of others is never read as markup."""
    parts: list[RenderableType] = [_head(title, status)]
    facts = [
        f"{status.actors} actors" if status.actors else "",
        f"{status.tokens_per_second:,.0f} tokens/s" if status.tokens_per_second else "",
        f"batches of {status.batch_rows} rows" if status.batch_rows else "",
        f"{size(status.cache_bytes)} of cache" if status.cache_bytes else "",
        *(f"{name} {value:.4f}" for name, value in status.measured.items()),
    ]
    if any(facts):
        parts.append(Text("  " + " · ".join(filter(None, facts)), style="dim", overflow="ellipsis", no_wrap=True))
    if status.scores and status.scores.methods:
        parts.append(_scores(status.scores))
    if status.failed:
        parts.append(Text(f"  {status.failed} failed", style="red"))
    for failure in status.failures[:MAX_FAILURES]:
        parts.append(Text(f"  {failure.where}: {failure.reason}", style="red", overflow="ellipsis", no_wrap=True))
    if status.note:
        parts.append(Text(f"  {status.note}", style="yellow"))
    return Group(*parts)


def _head(title: str, status: RunStatus) -> Table:
    head = Table.grid(padding=(0, 2), expand=False)
    speed = f"{status.rate:.3g} {status.unit}/s" if status.rate else ""
    head.add_row(
        Text(f"  {title}", style="bold"),
        ProgressBar(total=max(status.total, 1), completed=status.done, width=28),
        Text(f"{status.done:,}/{status.total:,} {status.unit}"),
        Text(speed, style="cyan"),
        Text(status.time_left),
    )
    return head


def _scores(scores: ScoresSoFar) -> Table:
    """Mean scores in percent so far; a cell without a row yet is a dot."""
    budgets = scores.budgets[:MAX_BUDGETS]
    table = Table(box=None, padding=(0, 2), pad_edge=True, header_style="dim")
    table.add_column("  scores so far")
    for budget in budgets:
        table.add_column(budget, justify="right")
    for method in scores.methods[:MAX_METHODS]:
        table.add_row(Text(f"  {method.method}"), *_percents(method.means[: len(budgets)]))
    hidden = max(0, len(scores.methods) - MAX_METHODS) + scores.omitted
    if hidden:
        table.add_row(Text(f"  … and {hidden} more", style="dim"))
    return table


def _percents(means: Sequence[float | None]) -> list[Text]:
    return [Text("·", style="dim") if mean is None else Text(f"{100 * mean:.1f}") for mean in means]

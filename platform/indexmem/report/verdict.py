"""The summary in plain words: who wins at which budget, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from indexmem.config.budget import Budget
from indexmem.report.text import p_words, signed
from indexmem.results.comparison import Difference
from indexmem.results.gate import ADVICE, Gate
from indexmem.results.summary import ALPHA, MEAN, Contest, Summary
from indexmem.results.tables import sample_counts

NAMED_AT_MOST = 4


@dataclass(frozen=True)
class Finding:
    """What one budget's column says: `title` is the outcome, `text` the numbers behind it."""

    budget: Budget
    best: str
    decided: bool
    title: str
    text: str


@dataclass(frozen=True)
class GridVerdict:
    headline: str
    findings: tuple[Finding, ...]
    basis: str


def verdict(summary: Summary) -> GridVerdict:
    """The verdict over the mean of all benchmarks."""
    findings = tuple(_finding(summary, budget) for budget in summary.budgets if (budget, MEAN) in summary.contests)
    return GridVerdict(_headline(summary), findings, _basis(summary))


def refusal(gate: Gate) -> GridVerdict:
    """The verdict where the full cache is below its floor, so that nothing may be ranked."""
    return GridVerdict(gate.headline, (), f"{'; '.join(map(str, gate.shortfalls))}. {ADVICE}")


def listing(items: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'; long lists end in 'and 7 more'."""
    shown = [*items] if len(items) <= NAMED_AT_MOST else [*items[: NAMED_AT_MOST - 1]]
    if len(shown) < len(items):
        shown.append(f"{len(items) - len(shown)} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def budget_list(budgets: Sequence[Budget]) -> str:
    """'50% and 75% eviction', '512 tokens and 8 MiB'."""
    shares = [str(budget) for budget in budgets if budget.kind == "ratio"]
    others = [str(budget) for budget in budgets if budget.kind != "ratio"]
    return " and at ".join(listing(texts) + after for texts, after in ((shares, " eviction"), (others, "")) if texts)


def _headline(summary: Summary) -> str:
    wins: dict[str, list[Budget]] = {}
    undecided = []
    for budget in summary.budgets:
        contest = summary.contests.get((budget, MEAN))
        if contest is None or not contest.lead:
            continue
        if len(contest.leading) == 1:
            wins.setdefault(contest.best, []).append(budget)
        else:
            undecided.append(budget)
    if not wins and not undecided:
        return "Nothing to compare: no budget has two methods with scores on every benchmark."
    sentences = [f"{method} is the best method at {budget_list(budgets)}." for method, budgets in wins.items()]
    if undecided:
        sentences.append(f"At {budget_list(undecided)}, no method is ahead by more than noise.")
    return " ".join(sentences)


def _finding(summary: Summary, budget: Budget) -> Finding:
    contest = summary.contests[budget, MEAN]
    decided = bool(contest.lead) and len(contest.leading) == 1
    body = _winner_text(contest) if decided else _tie_text(summary, contest, budget)
    against_full = _against_full(contest.best, summary.against_full(contest.best, budget))
    return Finding(budget, contest.best, decided, _title(summary, contest, budget), f"{body} {against_full}".strip())


def _title(summary: Summary, contest: Contest, budget: Budget) -> str:
    score = f"{100 * summary.cells[contest.best, budget, MEAN].mean:.1f}%"
    if not contest.lead:
        return f"{contest.best} scores {score}, with no rival"
    if len(contest.leading) == 1:
        return f"{contest.best} wins with {score}"
    return f"No winner; highest is {contest.best} with {score}"


def _winner_text(contest: Contest) -> str:
    rival = contest.closest_rival
    assert rival is not None
    lead = contest.lead[rival]
    surely = f"{_limits(lead)}, adjusted {p_words(lead.p_value)}"
    return f"{100 * lead.mean:.1f} points above the next best, {rival} ({surely})."


def _tie_text(summary: Summary, contest: Contest, budget: Budget) -> str:
    if not contest.lead:
        return ""
    tied = [f"{m} ({100 * summary.cells[m, budget, MEAN].mean:.1f}%)" for m in contest.leading[1:]]
    behind = len(contest.lead) - len(tied)
    rest = (
        f" {_count(behind, 'other method')} {'is' if behind == 1 else 'are'} worse by more than noise."
        if behind
        else ""
    )
    least = contest.detectable_lead
    shown = f" A lead of {100 * least:.0f} points would show in 4 of 5 such comparisons." if least else ""
    return f"Within noise of it: {listing(tied)}.{rest}{shown}"


def _against_full(method: str, difference: Difference | None) -> str:
    if difference is None:
        return "The full cache was not evaluated on the same samples."
    if difference.p_value >= ALPHA:
        return f"Not distinguishable from the full cache ({signed(difference.mean)} points, {_limits(difference)})."
    points = f"{abs(100 * difference.mean):.1f} points {'below' if difference.mean < 0 else 'above'}"
    return f"{points} the full cache ({_limits(difference)}, {p_words(difference.p_value)})."


def _basis(summary: Summary) -> str:
    many = len(summary.benchmarks)
    counts = f"{sample_counts(summary)} samples each"
    text = f"Mean over {_count(many, 'benchmark')}, {counts}, the same for every method that is ranked."
    leads = [lead.half_width for (_, b), c in summary.contests.items() if b == MEAN for lead in c.lead.values()]
    if leads:
        text += f" With these counts, a lead is known to about ±{100 * median(leads):.0f} points."
    return " ".join([text, *summary.caveats])


def _limits(difference: Difference) -> str:
    return f"95% interval {signed(difference.low)} to {signed(difference.high)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

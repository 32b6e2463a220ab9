"""The summary in plain words: who wins at which budget, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from indexmem.config.budget import Budget
from indexmem.report.text import counted, p_words, seconds_text, signed
from indexmem.results.comparison import Difference
from indexmem.results.costs import UNEQUAL, Cost
from indexmem.results.equal_bytes import EqualBytes, at_equal_bytes, best_trades
from indexmem.results.gate import ADVICE, Gate
from indexmem.results.intervals import Interval
from indexmem.results.summary import ALPHA, MEAN, Contest, Summary
from indexmem.results.tables import sample_counts

NAMED_AT_MOST = 4


@dataclass(frozen=True)
class Finding:
    """What one budget's column says: `title` is the outcome, `text` the numbers behind it, `cost` what the best method
    holds, `equal` the outcome where all methods hold the same bytes; '' where they do anyway.
    """

    budget: Budget
    best: str
    decided: bool
    title: str
    text: str
    cost: str = ""
    equal: str = ""


@dataclass(frozen=True)
class GridVerdict:
    headline: str
    findings: tuple[Finding, ...]
    basis: str
    trades: str = ""  # the Pareto front of score and bytes


def verdict(summary: Summary, costs: Sequence[Cost] = (), scope: str = MEAN) -> GridVerdict:
    """The verdict over the mean of all benchmarks, or over one of them (`scope`); `costs` of the same rows.

    What holds at equal bytes, and the best trades, are of the mean alone.
    """
    costs = [cost for cost in costs if cost.measured]
    contests = {
        budget: summary.contests[budget, scope] for budget in summary.budgets if (budget, scope) in summary.contests
    }
    equal = {
        budget: found
        for budget in contests
        if scope == MEAN and (found := at_equal_bytes(summary, costs, budget)) is not None
    }
    findings = tuple(_finding(summary, costs, scope, budget, equal.get(budget)) for budget in contests)
    trades = _trades(best_trades(summary, costs)) if scope == MEAN else ""
    return GridVerdict(_headline(contests, equal), findings, _basis(summary), trades)


def refusal(gate: Gate) -> GridVerdict:
    """The verdict where the full cache is below its floor, so that nothing may be ranked."""
    return GridVerdict(gate.headline, (), f"{'; '.join(map(str, gate.shortfalls))}. {ADVICE}")


def listing(items: Iterable[str]) -> str:
    """'a', 'a and b', 'a, b and c'; long lists end in 'and 7 more'; '' of nothing."""
    names = [*items]
    if not names:
        return ""
    shown = names if len(names) <= NAMED_AT_MOST else names[: NAMED_AT_MOST - 1]
    if len(shown) < len(names):
        shown = [*shown, f"{len(names) - len(shown)} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def budget_list(budgets: Sequence[Budget]) -> str:
    """'50% and 75% eviction', '512 tokens and 8 MiB'."""
    shares = [str(budget) for budget in budgets if budget.kind == "ratio"]
    others = [str(budget) for budget in budgets if budget.kind != "ratio"]
    return " and at ".join(listing(texts) + after for texts, after in ((shares, " eviction"), (others, "")) if texts)


def _headline(contests: Mapping[Budget, Contest], equal: Mapping[Budget, EqualBytes]) -> str:
    wins: dict[str, list[Budget]] = {}
    undecided = []
    for budget, contest in contests.items():
        if not contest.lead:
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
    for method, budgets in wins.items():
        lost = [b for b in budgets if b in equal and equal[b].contest.leading != (method,)]
        if lost:
            sentences.append(f"At equal bytes {method} does not lead at {budget_list(lost)}.")
    return " ".join(sentences)


def _finding(summary: Summary, costs: Sequence[Cost], scope: str, budget: Budget, equal: EqualBytes | None) -> Finding:
    contest = summary.contests[budget, scope]
    cells = {method: cell for (method, b, name), cell in summary.cells.items() if (b, name) == (budget, scope)}
    decided = bool(contest.lead) and len(contest.leading) == 1
    body = _body(contest, cells)
    against_full = _against_full(contest.best, summary.against_full(contest.best, budget, scope))
    spent = {cost.method: cost for cost in costs if cost.budget == budget}
    cost = _cost_text(spent, contest.leading) if contest.best in spent else ""
    title, text = _title(contest, cells), f"{body} {against_full}".strip()
    return Finding(budget, contest.best, decided, title, text, cost, _equal_text(equal) if equal is not None else "")


def _cost_text(spent: Mapping[str, Cost], leading: Sequence[str]) -> str:
    """'Holds 17.4% of the full cache's bytes, 180 ms to score.', and who of those within noise holds fewer."""
    best, shares = spent[leading[0]], {method: spent[method].cache_share for method in leading if method in spent}
    text = f"Holds {100 * best.cache_share:.1f}% of the full cache's bytes, {seconds_text(best.score_seconds)} to score"
    if best.cache_share <= UNEQUAL * min(shares.values()):
        return f"{text}."
    least = next(method for method, share in shares.items() if share <= UNEQUAL * min(shares.values()))
    return f"{text}; {least} holds {100 * shares[least]:.1f}%, {seconds_text(spent[least].score_seconds)} to score."


def _equal_text(equal: EqualBytes) -> str:
    said = f"At {100 * equal.share:.1f}% of the bytes for all, interpolated: {_title(equal.contest, equal.cells)}"
    scores = f"{equal.cells[equal.contest.best].limits}".replace(" to ", "% to ")
    beyond = f" Not measured at so many bytes: {listing(equal.beyond)}." if equal.beyond else ""
    return f"{said} (95% interval {scores}%). {_body(equal.contest, equal.cells)}{beyond}"


def _trades(found: Sequence[Cost]) -> str:
    """The front in words, a method once."""
    budgets: dict[str, list[Budget]] = {}
    for cost in found:
        budgets.setdefault(cost.method, []).append(cost.budget)
    named = "; ".join(f"{method} at {budget_list(sorted(mine))}" for method, mine in budgets.items())
    return f"No other cell has both a higher mean and fewer bytes than {named}." if named else ""


def _title(contest: Contest, cells: Mapping[str, Interval]) -> str:
    score = f"{100 * cells[contest.best].mean:.1f}%"
    if not contest.lead:
        return f"{contest.best} scores {score}, with no rival"
    if len(contest.leading) == 1:
        return f"{contest.best} wins with {score}"
    return f"No winner; highest is {contest.best} with {score}"


def _body(contest: Contest, cells: Mapping[str, Interval]) -> str:
    return _winner_text(contest) if len(contest.leading) == 1 and contest.lead else _tie_text(contest, cells)


def _winner_text(contest: Contest) -> str:
    rival = contest.closest_rival
    assert rival is not None
    lead = contest.lead[rival]
    surely = f"{_limits(lead)}, adjusted {p_words(lead.p_value)}"
    return f"{100 * lead.mean:.1f} points above the next best, {rival} ({surely})."


def _tie_text(contest: Contest, cells: Mapping[str, Interval]) -> str:
    if not contest.lead:
        return ""
    tied = [f"{m} ({100 * cells[m].mean:.1f}%)" for m in contest.leading[1:]]
    behind = len(contest.lead) - len(tied)
    rest = (
        f" {counted(behind, 'other method')} {'is' if behind == 1 else 'are'} worse by more than noise."
        if behind
        else ""
    )
    return f"Within noise of it: {listing(tied)}.{rest}"


def _against_full(method: str, difference: Difference | None) -> str:
    if difference is None:
        return "The full cache was not evaluated on the same samples."
    if difference.p_value >= ALPHA:
        return f"Not distinguishable from the full cache ({signed(difference.mean)} points, {_limits(difference)})."
    points = f"{abs(100 * difference.mean):.1f} points {'below' if difference.mean < 0 else 'above'}"
    return f"{points} the full cache ({_limits(difference)}, {p_words(difference.p_value)})."


def _basis(summary: Summary) -> str:
    many = len(summary.benchmarks)
    counts = sample_counts(summary)
    samples = "1 sample" if counts == "1" else f"{counts} samples"
    text = f"Mean over {counted(many, 'benchmark')}, {samples} each, the same for every method that is ranked."
    if (least := summary.detectable_lead) is not None:
        text += f" A lead of about {100 * least:.0f} points would show in 4 of 5 such comparisons."
    return " ".join([text, *summary.caveats])


def _limits(difference: Difference) -> str:
    return f"95% interval {signed(difference.low)} to {signed(difference.high)}"

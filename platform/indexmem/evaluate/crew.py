"""The actors of a grid: hired while there is room, each with a loaded model, replaced when they die.

The crew grows and shrinks with the cluster. Nothing is decided here about work: see fanout.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from indexmem.extras import missing

try:
    import ray
except ImportError:
    raise missing("ray", "ray") from None

from indexmem.cluster.connection import room
from indexmem.config.schema import GridConfig
from indexmem.errors import UserError
from indexmem.evaluate.work import Assignment, Unit
from indexmem.evaluate.worker import Load, UnitOutcome, Worker

CHECK_SECONDS = 3.0  # between looks at the cluster's size
LOAD_ATTEMPTS = 3  # actors in a row that may die while loading before the run gives up
PLACEMENT_SECONDS = 15.0  # without any actor placed, before the progress line says so


class Evaluator:
    """The actor. It is made at once and loads in a call of its own: finding room for it and loading are two things."""

    def __init__(self, assignment: Assignment, load: Load) -> None:
        self._assignment, self._load = assignment, load

    def node(self) -> str:
        """Id of the node that it is on."""
        return str(ray.get_runtime_context().get_node_id())

    def load(self) -> None:
        self._worker = Worker(self._assignment, self._load(self._assignment))

    def evaluate(self, unit: Unit) -> UnitOutcome:
        return self._worker.run(unit)


@dataclass(eq=False)
class Member:
    """An actor as the driver sees it."""

    handle: Any
    placed: Any  # reference of the call that says where it is
    lost_before: frozenset[str] = frozenset()  # nodes that were dead when it was hired
    state: Literal["hired", "placed", "ready"] = "hired"
    node: str | None = None
    units: dict[Any, Unit] = field(default_factory=dict)  # reference -> unit, the one that runs first
    rate: float | None = None  # rows per second


def shares(members: Sequence[Member]) -> list[float]:
    """Each member's share of the speed of all; they sum to 1. A member of unknown speed counts as average."""
    known = [member.rate for member in members if member.rate]
    usual = sum(known) / len(known) if known else 1.0
    speeds = [member.rate or usual for member in members]
    return [speed / sum(speeds) for speed in speeds]


@dataclass(frozen=True)
class CrewReport:
    """Something that happened: a member finished a unit, or was lost with what it held."""

    unit: Unit | None = None  # finished, or running when its worker was lost
    outcome: UnitOutcome | None = None
    error: Exception | None = None
    untouched: tuple[Unit, ...] = ()  # queued behind it, and not to blame


class Crew:
    """As a context it ends its actors."""

    def __init__(self, grid: GridConfig, assignment: Assignment, load: Load) -> None:
        """Raises UserError when no node of the cluster can hold even one actor."""
        self._grid = grid
        if not self._room():
            raise UserError(
                f"Actors with {_resources(grid.cpus_per_actor, grid.gpus_per_actor)} each do not fit this cluster: no "
                f"node has as much ({_total()} altogether). Lower grid.cpus_per_actor or grid.gpus_per_actor, or add "
                "nodes; run.wait_for_nodes=SECONDS waits for nodes that an autoscaler starts."
            )
        options: dict[str, Any] = {"num_cpus": grid.cpus_per_actor, "num_gpus": grid.gpus_per_actor}
        self._actor_class = ray.remote(**options)(Evaluator)
        self._arguments = (ray.put(assignment), load)
        self._members: list[Member] = []
        self._calls: dict[Any, Member] = {}
        self._checked = float("-inf")
        self._placed_at = time.monotonic()
        self._load_failures = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for member in list(self._members):
            self._dismiss(member)

    @property
    def ready(self) -> list[Member]:
        """Members that may be given work, the least busy first."""
        return sorted((m for m in self._members if m.state == "ready"), key=lambda m: len(m.units))

    @property
    def running(self) -> set[Unit]:
        """Units being worked on, without those queued behind them."""
        return {next(iter(member.units.values())) for member in self._members if member.units}

    def resize(self, useful: int) -> None:
        """Hire up to `grid.actors`, or else as many as fit, but no more than are `useful`. Looks every few seconds.

        Raises UserError when actors die again and again while loading.
        """
        if time.monotonic() - self._checked < CHECK_SECONDS:
            return
        self._checked = time.monotonic()
        lost = self._lost_nodes()
        for _ in range(min(self._grid.actors or self._room(), useful) - len(self._members)):
            handle: Any = self._actor_class.remote(*self._arguments)
            member = Member(handle, handle.node.remote(), lost)
            self._members.append(member)
            self._calls[member.placed] = self._calls[handle.load.remote()] = member

    def submit(self, member: Member, unit: Unit) -> None:
        """Queue a unit at a ready member."""
        reference = member.handle.evaluate.remote(unit)
        member.units[reference] = unit
        self._calls[reference] = member

    def wait(self, seconds: float) -> CrewReport | None:
        """The next thing that happens within `seconds`; None when nothing does that concerns a unit."""
        if not self._calls:
            time.sleep(seconds)
            return None
        done, _ = ray.wait(list(self._calls), num_returns=1, timeout=seconds)
        return self._receive(done[0]) if done else None

    def note(self) -> str:
        """What the crew waits for; "" while an actor has room."""
        if any(member.state != "hired" for member in self._members):
            self._placed_at = time.monotonic()
        if time.monotonic() - self._placed_at < PLACEMENT_SECONDS:
            return ""
        wanted = _resources(self._grid.cpus_per_actor, self._grid.gpus_per_actor)
        free = ray.available_resources()
        available = _resources(free.get("CPU", 0), free.get("GPU", 0))
        return f"no actor has a place: each needs {wanted}; the cluster has {available} free of {_total()}"

    def _receive(self, reference: Any) -> CrewReport | None:
        member = self._calls.pop(reference)
        try:
            result = ray.get(reference)
        except ray.exceptions.RayError as error:
            oldest = next(iter(member.units), None)
            if oldest is not None and oldest != reference and _succeeded(oldest):
                # Its answer came before the end and is read after it: another unit is to blame.
                self._calls[reference] = member
                return self._receive(oldest)
            return self._lose(member, error)
        if reference in member.units:
            unit = member.units.pop(reference)
            rate = result.digest.done / max(result.seconds, 1e-6)
            member.rate = rate if member.rate is None else (member.rate + rate) / 2
            return CrewReport(unit, result)
        if reference == member.placed:
            member.node = result
            member.state = "placed" if member.state == "hired" else member.state  # both answers may come at once
        else:
            member.state, self._load_failures = "ready", 0
        return None

    def _lose(self, member: Member, error: Exception) -> CrewReport | None:
        """Whatever went wrong, this actor has ended: a worker deals with all that a process can survive."""
        cause = getattr(error, "cause", None)  # what was raised, where Python raised something
        reason = cause if isinstance(cause, Exception) else error
        units = list(member.units.values())
        self._dismiss(member)
        if member.state != "ready" and not self._died_with_its_node(member):
            self._load_failures += 1
            if self._load_failures >= LOAD_ATTEMPTS:
                raise UserError(
                    f"{self._load_failures} actors in a row died before they could work. The last one: "
                    f"{type(reason).__name__}: {str(reason)[:2000]}\n"
                    "What is finished is stored. Solve this, and start the same command again."
                )
        elif member.state == "ready":
            self._checked = float("-inf")  # replace it at once
        return CrewReport(units[0], None, reason, tuple(units[1:])) if units else None

    def _dismiss(self, member: Member) -> None:
        self._members.remove(member)
        self._calls = {reference: other for reference, other in self._calls.items() if other is not member}
        ray.kill(member.handle)

    def _room(self) -> int:
        """Actors that the living nodes hold when nothing else runs there."""
        return room(self._grid.cpus_per_actor, self._grid.gpus_per_actor)

    def _died_with_its_node(self, member: Member) -> bool:
        """Also true when it was still on its way to a node and one has died meanwhile: Ray does not say which."""
        lost = self._lost_nodes()
        return member.node in lost if member.node else lost > member.lost_before

    @staticmethod
    def _lost_nodes() -> frozenset[str]:
        return frozenset(node["NodeID"] for node in ray.nodes() if not node["Alive"])


def _succeeded(reference: Any) -> bool:
    """Whether a call has an answer."""
    try:
        ray.get(reference, timeout=0)
    except ray.exceptions.RayError:  # also while there is none yet
        return False
    return True


def _resources(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU and {gpus:g} GPU"


def _total() -> str:
    total = ray.cluster_resources()
    return _resources(total.get("CPU", 0), total.get("GPU", 0))

"""Goal: what is deployed while runs are under way changes none of them, whatever else goes wrong.

Method: worlds as those of `test_engine`, in which deployments become active, hosts of deployments
begin when they are needed and are ended when nobody uses them; worlds in which operators also set
shares, move runs, and remove deployments; and worlds that lack a rule.
More seeds of the second kind: `make soak`, or `python -m tests.simulation.engine --switches`.
"""

from collections import Counter
from functools import cache

import pytest
from typing_extensions import override

from headwater.processors.runs.state import Run
from headwater.streams.engine.code import Code
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.owner import Owner
from tests.simulation.engine import run, switched_shapes
from tests.simulation.engine_switches import Switches
from tests.simulation.engine_world import Rules
from tests.simulation.shapes import Violation
from tests.simulation.test_engine import LeftOut, left, shown

SEEDS = range(48)


@cache
def played(seed: int) -> tuple[list[str], Counter[str]]:
    """What has not ended in the world of a seed, and what went wrong there; it is played once."""
    world = run(seed, released=True)
    return left(world), Counter(world.seen)


@pytest.mark.parametrize("block", range(4))
def test_runs_end_as_they_would_if_nothing_were_deployed(block: int):
    for seed in SEEDS[block::4]:
        unended, _ = played(seed)
        assert unended == []


def test_the_worlds_of_deployments_are_as_bad_as_they_should_be():
    seen = sum((played(seed)[1] for seed in SEEDS), Counter[str]())
    assert all(
        seen[what] > 20 for what in ("released", "checked", "ended host", "crash", "host")
    ), seen


class SaysThatNobodyIsUsed(Owner):
    """An owner that knows only of those who wait for a host, not of those who have it."""

    @override
    def hosts_in_use(self) -> set[int]:
        return self._activations.ready.hosts()


class ForgetsWhatCameTooEarly(Driver):
    """A driver that does not give again what a host was given before it was there."""

    @override
    def host_lost(self, reason: str, turn: int | None = None, *, host: int = 0) -> None:
        if turn != -1:
            super().host_lost(reason, turn, host=host)


@pytest.mark.parametrize(
    ("rules", "found"),
    [(Rules(owner=SaysThatNobodyIsUsed), 12), (Rules(driver=ForgetsWhatCameTooEarly), 24)],
    ids=["who is used", "what came too early"],
)
def test_no_rule_can_be_left_out(rules: Rules, found: int):
    messages = shown(LeftOut(rules, found, [], "to end", released=True))
    assert any("to end" in message for message in messages)


def test_code_that_forgets_where_a_run_began_is_found_out(monkeypatch: pytest.MonkeyPatch):
    of = Code.host_of

    def host_of(self: Code, run: Run) -> int | None:
        active = self._deployments.active
        return of(self, run) if active is None else self._deployed_host(active.id)

    monkeypatch.setattr(Code, "host_of", host_of)
    result = shown(LeftOut(None, 31, [], "a host of", released=True))
    assert any("a host of" in item for item in result)


# --- switches: activations, shares, rollbacks, moves, removals

SWITCHED = range(16)


def test_no_run_is_lost_or_on_two_deployments_whatever_operators_switch():
    seen = Counter[str]()
    for seed in SWITCHED:
        world = run(seed, shapes=switched_shapes(seed), switches=Switches)
        assert left(world) == []
        seen += Counter(world.seen)
    switches = ("release", "share", "remove", "deploy_again", "move", "start")
    assert all(seen[what] > 10 for what in (*switches, "removed", "reopened", "crash")), seen


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000, 2_000, 100))
def test_no_run_is_lost_in_many_worlds_whatever_operators_switch(first: int):
    for seed in range(first, first + 100):
        assert left(run(seed, shapes=switched_shapes(seed), switches=Switches)) == []


class CountsTooEarly(Switches):
    """Removals that count the open runs without waiting for what was decided before."""

    fenced = False


def test_a_removal_that_does_not_wait_for_all_partitions_is_found_out():
    messages = []
    for seed in range(40):
        try:
            run(seed, shapes=switched_shapes(seed), switches=CountsTooEarly)
        except Violation as violation:
            messages.append(str(violation))
        if len(messages) == 2:
            break
    assert [message.endswith("is removed") for message in messages] == [True, True], messages

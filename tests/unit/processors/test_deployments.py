"""The fold of what is deployed and activated."""

from collections.abc import Sequence
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.deployments import (
    Activated,
    ActivationRejected,
    Created,
    Deployments,
    Retired,
    Share,
    deployment_id,
    is_in_share,
)
from headwater.schemas.deployments import (
    CLOSED,
    REMOVED,
    REOPENED,
    DeployedSchedule,
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
    DeploymentRecord,
    DeploymentRetired,
)

ORDER = DeployedWorkflow(name="order", kind="replay")


def created(name: str, at_ms: int = 7, *schedules: DeployedSchedule) -> DeploymentCreated:
    return DeploymentCreated(
        id=name,
        app="shop",
        digest="d",
        size=3,
        offset=0,
        workflows=(ORDER,),
        by="k",
        at_ms=at_ms,
        schedules=schedules,
    )


def activated(
    name: str, *, after: str = "", rollback: bool = False, percent: int = 100
) -> DeploymentActivated:
    return DeploymentActivated(
        id=name, after=after, rollback=rollback, by="k", at_ms=9, percent=percent
    )


def retired(name: str, stage: str, closing: str = "c", *schedules: str) -> DeploymentRetired:
    return DeploymentRetired(
        id=name, stage=stage, closing=closing, by="k", at_ms=9, schedules=schedules
    )


def deployed(*names: str) -> Deployments:
    """Deployments of these names; those after the first are activated in their order."""
    result = Deployments()
    for name in names:
        result.apply(created(name))
    for name in names:
        result.apply(activated(name))
    return result


def test_to_deploy_activates_nothing():
    result = Deployments()
    assert result.apply(created("a")) == Created(created("a"), new=True)
    assert result.active is None


def test_what_is_deployed_again_is_the_same():
    result = Deployments()
    result.apply(created("a", at_ms=1))
    assert result.apply(created("a", at_ms=2)) == Created(created("a", at_ms=1), new=False)


def test_the_last_activation_counts():
    result = deployed("a", "b")
    assert result.active == created("b")
    assert result.apply(activated("a")) == Activated("a", "b", new=True)
    assert result.activated_at_ms == {"a": 9, "b": 9}


def test_to_activate_what_is_active_changes_nothing_whatever_was_meant_to_be_before():
    result = deployed("a", "b")
    assert result.apply(activated("b", after="a")) == Activated("b", "b", new=False)
    assert result.activations == ["a", "b"]


def test_of_two_who_replace_the_same_deployment_one_is_refused():
    result = deployed("a", "b", "c")
    result.apply(activated("a", after="c"))
    outcome = result.apply(activated("b", after="c"))
    assert outcome == ActivationRejected(
        "deployment_changed",
        "expected c to be active, found a; another deployment was activated in the meantime",
    )
    assert result.active == created("a")


def test_the_first_activation_may_ask_that_none_was_before():
    result = Deployments()
    result.apply(created("a"))
    assert isinstance(result.apply(activated("a", after="b")), ActivationRejected)
    assert isinstance(result.apply(activated("a", after="none")), Activated)


def test_rollbacks_go_back_one_by_one():
    result = deployed("a", "b", "c")
    for expected in ("b", "a"):
        target = result.rolled_back_to()
        assert isinstance(target, DeploymentCreated)
        result.apply(activated(target.id, rollback=True))
        assert result.active == created(expected)
    refused = result.rolled_back_to()
    assert isinstance(refused, ActivationRejected)
    assert refused.code == "nothing_to_roll_back"


def test_a_rollback_may_name_any_that_was_active_before():
    result = deployed("a", "b", "c")
    assert result.rolled_back_to("a") == created("a")
    result.apply(activated("a", rollback=True))
    assert result.activations == ["a"]
    for other in ("c", "never"):
        assert isinstance(result.rolled_back_to(other), ActivationRejected)


def test_what_was_activated_since_is_gone_back_from_first():
    result = deployed("a", "b")
    result.apply(activated("a", rollback=True))
    result.apply(activated("b"))
    assert result.rolled_back_to() == created("a")


def test_what_was_gone_back_from_is_known_until_the_next_activation():
    result = deployed("a", "b")
    assert result.rolled_back_from is None
    result.apply(activated("a", rollback=True))
    result.apply(activated("a", after="x", rollback=True))
    assert result.rolled_back_from == "b"
    result.apply(activated("b"))
    assert result.rolled_back_from is None


def test_a_workflow_is_looked_up_in_its_deployment():
    result = deployed("a")
    assert result.workflow("a", "order") == ORDER
    assert result.workflow("a", "bill") is None
    assert result.workflow("b", "order") is None


def test_ids_are_made_of_what_is_deployed():
    assert deployment_id("shop", "d") == deployment_id("shop", "d")
    assert (
        len({deployment_id("shop", "d"), deployment_id("shop", "e"), deployment_id("s", "d")}) == 3
    )
    assert deployment_id("shop", "d").startswith("dep_")


def test_schedules_are_those_of_the_active_deployment_and_the_ends_of_others():
    result = Deployments()
    nightly, hourly = (DeployedSchedule(name=name, declared="{}") for name in ("night", "hour"))
    result.apply(created("a", 7, nightly, hourly))
    result.apply(created("b", 7, hourly))
    assert result.schedules() == {}
    result.apply(activated("b"))
    assert result.schedules() == {"hour": hourly}
    result.apply(activated("a"))
    result.apply(activated("b", rollback=True))
    assert result.schedules() == {"hour": hourly, "night": None}
    assert result.moves == 3
    result.apply(activated("b"))
    assert result.moves == 3


# --- shares


def test_shares_are_of_the_hash_of_workflow_and_instance():
    number = int.from_bytes(sha256(b"order/order-1").digest()[:8]) % 100
    assert is_in_share("order", "order-1", number + 1)
    assert not is_in_share("order", "order-1", number)


@given(st.text(max_size=9), st.text(max_size=9), st.integers(0, 100), st.integers(0, 100))
def test_an_instance_in_a_share_is_in_every_greater_one(
    workflow: str, instance: str, one: int, two: int
):
    less, more = sorted((one, two))
    assert is_in_share(workflow, instance, less) <= is_in_share(workflow, instance, more)
    assert is_in_share(workflow, instance, 100)
    assert not is_in_share(workflow, instance, 0)


def test_shares_are_about_what_they_say():
    count = sum(is_in_share("order", f"o-{number}", 10) for number in range(10_000))
    assert 900 < count < 1_100


def test_a_share_changes_neither_the_active_one_nor_the_number_of_activations():
    result = deployed("a", "b")
    moves = result.moves
    assert result.apply(activated("a", percent=10)) == Activated("a", "b", new=True)
    assert (result.active, result.share, result.moves) == (created("b"), Share("a", 10), moves)
    assert (result.percent_of("a"), result.percent_of("b"), result.state) == (10, 90, "b+a@10")
    assert result.in_use == {"a", "b"}
    assert result.apply(activated("a", percent=10)) == Activated("a", "b", new=False)
    assert result.apply(activated("a", percent=0)) == Activated("a", "b", new=True)
    assert (result.share, result.state, result.in_use) == (None, "b", {"b"})


def test_an_activation_ends_a_share():
    for name, expected in (("c", "c"), ("a", "a"), ("b", "b")):
        result = deployed("a", "b")
        result.apply(created("c"))
        result.apply(activated("c", percent=99))
        assert result.apply(activated(name)) == Activated(name, "b", new=True)
        assert (result.state, result.share) == (expected, None)


def test_a_rollback_ends_a_share_before_it_goes_back():
    result = deployed("a", "b")
    result.apply(created("c"))
    result.apply(activated("c", percent=10))
    for expected in ("b", "a"):
        target = result.rolled_back_to()
        assert isinstance(target, DeploymentCreated)
        outcome = result.apply(activated(target.id, after=result.state, rollback=True))
        assert isinstance(outcome, Activated)
        assert result.state == expected


# --- removals


def test_what_is_removed_is_no_way_back():
    result = deployed("a", "b", "a", "c")
    for stage in (CLOSED, REMOVED):
        assert isinstance(result.apply(retired("b", stage)), Retired)
    assert result.activations == ["a", "c"]
    assert result.rolled_back_to() == created("a")
    for record in (activated("b"), activated("b", percent=5)):
        outcome = result.apply(record)
        assert isinstance(outcome, ActivationRejected)
        assert outcome.code == "deployment_removed"
    assert result.newest_with("order") == "c"


@pytest.mark.parametrize("percent", [100, 10])
def test_what_gets_new_runs_is_not_closed(percent: int):
    result = deployed("a", "b")
    result.apply(activated("a", percent=percent))
    outcome = result.apply(retired("a", CLOSED))
    assert isinstance(outcome, ActivationRejected)
    assert (outcome.code, result.retired) == ("deployment_active", {})


def test_a_removal_needs_the_closing_that_it_began_with():
    result = deployed("a", "b")
    assert result.apply(retired("a", REMOVED)) == Retired(None, removed=False)
    assert result.apply(retired("a", CLOSED, "c1")) == Retired("c1", removed=False)
    assert result.apply(retired("a", CLOSED, "c2")) == Retired("c1", removed=False)
    assert result.apply(retired("a", REOPENED, "c2")) == Retired("c1", removed=False)
    assert result.apply(retired("a", REOPENED, "c1")) == Retired(None, removed=False)
    assert result.apply(retired("a", CLOSED, "c3")) == Retired("c3", removed=False)
    # Runs may have begun between the two closings.
    assert result.apply(retired("a", REMOVED, "c1")) == Retired("c3", removed=False)
    assert result.apply(retired("a", REMOVED, "c3")) == Retired(None, removed=True)
    for stage in (CLOSED, REOPENED, REMOVED):
        assert result.apply(retired("a", stage, "c3")) == Retired(None, removed=True)


def test_what_is_removed_may_be_deployed_again():
    result = deployed("a", "b")
    for stage in (CLOSED, REMOVED):
        result.apply(retired("a", stage))
    assert result.apply(created("a", 8)) == Created(created("a", 8), new=True)
    assert isinstance(result.apply(activated("a")), Activated)


def test_schedules_of_a_removed_deployment_are_still_ended():
    result = Deployments()
    result.apply(created("a", 7, DeployedSchedule(name="night", declared="{}")))
    result.apply(created("b"))
    for name in ("a", "b"):
        result.apply(activated(name))
    result.apply(retired("a", CLOSED))
    result.apply(retired("a", REMOVED, "c", "night"))
    assert result.schedules() == {"night": None}


NAMES = st.sampled_from("abc")
CLOSINGS = st.sampled_from(["c1", "c2"])
STAGES = st.sampled_from([CLOSED, CLOSED, REOPENED, REMOVED, REMOVED])
RECORDS: st.SearchStrategy[DeploymentRecord] = st.one_of(
    st.builds(created, NAMES),
    st.builds(
        activated,
        NAMES,
        after=st.sampled_from(["", "", "a", "b", "none", "a+b@10"]),
        rollback=st.booleans(),
        percent=st.sampled_from([100, 100, 0, 10, 50]),
    ),
    st.builds(retired, NAMES, STAGES, CLOSINGS),
)


@given(st.lists(RECORDS, max_size=30))
def test_the_log_without_the_records_of_removed_deployments_says_the_same(
    records: list[DeploymentRecord],
):
    removed: dict[str, int] = {}
    whole = Deployments()
    for number, record in enumerate(records):
        outcome = whole.apply(record)
        if isinstance(outcome, Retired) and outcome.removed:
            removed.setdefault(record.id, number)
        if isinstance(outcome, Created) and outcome.new:
            removed.pop(record.id, None)
    compacted = Deployments()
    for number, record in enumerate(records):
        if not (isinstance(record, DeploymentCreated) and number < removed.get(record.id, 0)):
            compacted.apply(record)
    assert facts(compacted) == facts(whole)


def facts(fold: Deployments) -> Sequence[object]:
    return (
        fold.by_id,
        fold.activations,
        fold.share,
        fold.retired,
        fold.activated_at_ms,
        fold.moves,
        fold.rolled_back_from,
        fold.state,
    )

"""The fold of what is deployed and activated."""

from headwater.processors.deployments import (
    Activated,
    ActivationRejected,
    Created,
    Deployments,
    deployment_id,
)
from headwater.schemas.deployments import (
    DeployedSchedule,
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
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


def activated(name: str, *, after: str = "", rollback: bool = False) -> DeploymentActivated:
    return DeploymentActivated(id=name, after=after, rollback=rollback, by="k", at_ms=9)


def deployed(*names: str) -> Deployments:
    """Deployments of these names; those after the first are activated in their order."""
    found = Deployments()
    for name in names:
        found.apply(created(name))
    for name in names:
        found.apply(activated(name))
    return found


def test_to_deploy_activates_nothing():
    found = Deployments()
    assert found.apply(created("a")) == Created(created("a"), new=True)
    assert found.active is None


def test_what_is_deployed_again_is_the_same():
    found = Deployments()
    found.apply(created("a", at_ms=1))
    assert found.apply(created("a", at_ms=2)) == Created(created("a", at_ms=1), new=False)


def test_the_last_activation_counts():
    found = deployed("a", "b")
    assert found.active == created("b")
    assert found.apply(activated("a")) == Activated(created("a"), "b", new=True)
    assert found.activated_at_ms == {"a": 9, "b": 9}


def test_to_activate_what_is_active_changes_nothing_whatever_was_meant_to_be_before():
    found = deployed("a", "b")
    assert found.apply(activated("b", after="a")) == Activated(created("b"), "b", new=False)
    assert found.activations == ["a", "b"]


def test_an_activation_of_what_is_not_there_is_refused():
    outcome = Deployments().apply(activated("a"))
    assert isinstance(outcome, ActivationRejected)
    assert (outcome.code, "with the id a" in outcome.message) == ("deployment_not_found", True)


def test_of_two_who_replace_the_same_deployment_one_is_refused():
    found = deployed("a", "b", "c")
    found.apply(activated("a", after="c"))
    outcome = found.apply(activated("b", after="c"))
    assert outcome == ActivationRejected(
        "deployment_changed",
        "expected c to be active, found a; another deployment was activated in the meantime",
    )
    assert found.active == created("a")


def test_the_first_activation_may_ask_that_none_was_before():
    found = Deployments()
    found.apply(created("a"))
    assert isinstance(found.apply(activated("a", after="b")), ActivationRejected)
    assert isinstance(found.apply(activated("a", after="none")), Activated)


def test_rollbacks_go_back_one_by_one():
    found = deployed("a", "b", "c")
    for expected in ("b", "a"):
        target = found.rolled_back_to()
        assert isinstance(target, DeploymentCreated)
        found.apply(activated(target.id, rollback=True))
        assert found.active == created(expected)
    refused = found.rolled_back_to()
    assert isinstance(refused, ActivationRejected)
    assert refused.code == "nothing_to_roll_back"


def test_a_rollback_may_name_any_that_was_active_before():
    found = deployed("a", "b", "c")
    assert found.rolled_back_to("a") == created("a")
    found.apply(activated("a", rollback=True))
    assert found.activations == ["a"]
    for other in ("c", "never"):
        assert isinstance(found.rolled_back_to(other), ActivationRejected)


def test_what_was_activated_since_is_gone_back_from_first():
    found = deployed("a", "b")
    found.apply(activated("a", rollback=True))
    found.apply(activated("b"))
    assert found.rolled_back_to() == created("a")


def test_what_was_gone_back_from_is_known_until_the_next_activation():
    found = deployed("a", "b")
    assert found.rolled_back_from is None
    found.apply(activated("a", rollback=True))
    found.apply(activated("a", after="x", rollback=True))
    assert found.rolled_back_from == "b"
    found.apply(activated("b"))
    assert found.rolled_back_from is None


def test_a_workflow_is_looked_up_in_its_deployment():
    found = deployed("a")
    assert found.workflow("a", "order") == ORDER
    assert found.workflow("a", "bill") is None
    assert found.workflow("b", "order") is None


def test_ids_are_made_of_what_is_deployed():
    assert deployment_id("shop", "d") == deployment_id("shop", "d")
    assert (
        len({deployment_id("shop", "d"), deployment_id("shop", "e"), deployment_id("s", "d")}) == 3
    )
    assert deployment_id("shop", "d").startswith("dep_")


def test_schedules_are_those_of_the_active_deployment_and_the_ends_of_others():
    found = Deployments()
    nightly, hourly = (DeployedSchedule(name=name, declared="{}") for name in ("night", "hour"))
    found.apply(created("a", 7, nightly, hourly))
    found.apply(created("b", 7, hourly))
    assert found.schedules() == {}
    found.apply(activated("b"))
    assert found.schedules() == {"hour": hourly}
    found.apply(activated("a"))
    found.apply(activated("b", rollback=True))
    assert found.schedules() == {"hour": hourly, "night": None}
    assert found.moves == 3
    found.apply(activated("b"))
    assert found.moves == 3

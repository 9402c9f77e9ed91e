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
    assert result.apply(activated("a")) == Activated(created("a"), "b", new=True)
    assert result.activated_at_ms == {"a": 9, "b": 9}


def test_to_activate_what_is_active_changes_nothing_whatever_was_meant_to_be_before():
    result = deployed("a", "b")
    assert result.apply(activated("b", after="a")) == Activated(created("b"), "b", new=False)
    assert result.activations == ["a", "b"]


def test_an_activation_of_what_is_not_there_is_refused():
    outcome = Deployments().apply(activated("a"))
    assert isinstance(outcome, ActivationRejected)
    assert (outcome.code, "with the id a" in outcome.message) == ("deployment_not_found", True)


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

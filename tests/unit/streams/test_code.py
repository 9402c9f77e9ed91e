"""What new runs are made from, and where the code of runs is, with deployments and without."""

import json
from collections.abc import Collection
from typing import Final

import msgspec
import pytest

from headwater import GraphWorkflow
from headwater.processors.code.host_messages import Raise, Suspend
from headwater.processors.deployments import (
    Activated,
    Deployments,
    Retired,
    artifact_of,
    is_in_share,
)
from headwater.processors.graph.engine import GraphEngine
from headwater.processors.runs.claims import Claims
from headwater.processors.runs.decisions import Rejection, Request
from headwater.processors.runs.host_messages import Requested
from headwater.processors.runs.state import Run
from headwater.schemas.deployments import (
    CLOSED,
    REMOVED,
    REOPENED,
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
    DeploymentRetired,
)
from headwater.schemas.history import (
    Artifact,
    Command,
    CommandRejected,
    Failure,
    MoveRun,
    Parent,
    PauseRun,
    RestartRun,
    ResumeRun,
    RetryRun,
    Sender,
    SendEvent,
    StartRun,
    TerminateRun,
)
from headwater.streams.engine.code import Code, RunSource
from headwater.streams.engine.live_instances import LiveInstances
from headwater.streams.engine.owner import Owner
from tests.fakes import records
from tests.fakes.engines import ENGINES, REPLAY

APP: Final = 1
ELSEWHERE: Final = Artifact("dep_none", "app", "00")
PARENT: Final = Parent("order", "o-1", 0, "ship")


def deployed(name: str, *workflows: DeployedWorkflow) -> DeploymentCreated:
    return DeploymentCreated(
        id=name, app="app", digest="00", size=1, offset=0, workflows=workflows, by="", at_ms=0
    )


def of(name: str, **more: object) -> DeployedWorkflow:
    return DeployedWorkflow(**({"name": name, "kind": REPLAY.kind} | more))


FIRST: Final = deployed("dep_1", of("order"), of("ship"), of("news", latest=True))
SECOND: Final = deployed(
    "dep_2",
    of("order", params='{"type": "integer"}', limit=1),
    of("news", latest=True),
    of("board"),
)


class World:
    """An owner, what it has in its app, and hosts of deployments: 11, 12."""

    def __init__(self, *, app: Collection[str] = ("order", "solo", "news")) -> None:
        self.deployments = Deployments()
        for item in (FIRST, SECOND):
            self.deployments.apply(item)
        kinds = dict.fromkeys(app, REPLAY.kind) | {"board": GraphEngine.kind}
        code = Code(
            kinds,
            hosts=dict.fromkeys(app, APP),
            deployments=self.deployments,
            deployed_host=lambda name: 10 + int(name[-1]),
            latest={"news"},
        )
        self.code = code
        self._number = 0
        self.hosts: dict[int, int] = {}
        self.owner = Owner(
            0,
            Claims(epoch=0),
            LiveInstances(ENGINES),
            code=code,
            number_activations=self._numbered,
            draw_seed=lambda: "seed",
        )

    def _numbered(self, host: int) -> int:
        self._number += 1
        self.hosts[self._number] = host
        return self._number

    def activate(self, deployment: str, percent: int = 100) -> None:
        outcome = self.deployments.apply(
            DeploymentActivated(
                id=deployment, after="", rollback=False, by="", at_ms=0, percent=percent
            )
        )
        assert isinstance(outcome, Activated)
        self.owner.code_changed()

    def retire(self, deployment: str, stage: str) -> None:
        record = DeploymentRetired(id=deployment, stage=stage, closing="c", by="", at_ms=0)
        assert isinstance(self.deployments.apply(record), Retired)
        self.owner.code_changed()

    def tell(self, command: Command, workflow: str = "order", name: str = "o-1") -> str:
        """Says with which code it was refused, if it was."""
        sent = records.sent(command, workflow=workflow, instance_id=name)
        self.owner.receive(self.owner.claims.cause + 1, sent, 0)
        events = [event for record in self.owner.take_batch().records for event in record.events]
        return next((event.code for event in events if isinstance(event, CommandRejected)), "")

    def run(self, workflow: str = "order", name: str = "o-1") -> Run:
        live = self.owner.instances.find(f"{workflow}/{name}")
        assert live is not None
        return live.run

    def deployment(self, workflow: str = "order") -> str | None:
        """What the run of the latest is made from."""
        result = self.run(workflow).deployment
        return None if result is None else result.name

    def asks(self, request: Request, workflow: str = "order") -> None:
        live = self.owner.instances.find(f"{workflow}/o-1")
        assert live is not None
        assert live.activation is not None
        self.owner.handle([Requested(live.activation, request)], 0)

    def handed_out(self, closed: Collection[int] = ()) -> list[int]:
        """The hosts that are given something now."""
        before = self._number
        self.owner.dispatch(0, closed=closed)
        return [host for number, host in self.hosts.items() if number > before]


@pytest.mark.parametrize(
    ("active", "workflow", "found"),
    [
        (None, "order", "app"),
        ("dep_1", "order", "dep_1"),
        ("dep_2", "order", "dep_2"),
        ("dep_2", "solo", "app"),
        ("dep_1", "ship", "dep_1"),
        ("dep_1", "news", None),
    ],
)
def test_a_run_begins_on_the_active_deployment_if_that_has_its_workflow(
    active: str | None, workflow: str, found: str | None
):
    world = World()
    if active is not None:
        world.activate(active)
    assert world.tell(StartRun("1"), workflow) == ""
    assert world.deployment(workflow) == found
    event = SendEvent("e", "news", "1", start="1")
    assert world.tell(event, workflow, "by-event") == ""
    made = world.run(workflow, "by-event").deployment
    assert (made.name if made else None) == found


def test_a_workflow_that_only_another_deployment_has_cannot_be_started():
    world = World()
    assert world.tell(StartRun("1"), "ship") == "WORKFLOW_NOT_FOUND"
    world.activate("dep_2")
    assert world.tell(StartRun("1"), "ship") == "WORKFLOW_NOT_FOUND"
    world.activate("dep_1")
    assert world.tell(StartRun("1"), "ship") == ""


@pytest.mark.parametrize(
    ("workflow", "named", "found"),
    [
        ("order", artifact_of(FIRST), "dep_1"),
        ("ship", artifact_of(FIRST), "dep_1"),
        ("news", artifact_of(FIRST), "dep_1"),
        ("solo", artifact_of(FIRST), "WORKFLOW_NOT_FOUND"),
        ("order", ELSEWHERE, "deployment_not_found"),
    ],
)
def test_a_run_begins_on_the_deployment_that_is_named(workflow: str, named: Artifact, found: str):
    world = World()
    world.activate("dep_2")
    refused = world.tell(StartRun("1", deployment=named), workflow)
    assert (refused or world.deployment(workflow)) == found


@pytest.mark.parametrize(
    ("workflow", "found"), [("order", "dep_1"), ("ship", "dep_1"), ("news", None), ("solo", "app")]
)
def test_a_child_begins_on_its_parents_deployment_if_that_has_its_workflow(
    workflow: str, found: str | None
):
    world = World()
    world.activate("dep_2")
    start = StartRun("1", PARENT, deployment=artifact_of(FIRST))
    assert world.tell(start, workflow) == ""
    assert world.deployment(workflow) == found


def test_what_a_step_starts_on_a_deployment_follows_the_code_if_it_says_so():
    world = World()
    world.activate("dep_2")
    sender = Sender("headwater-schedule", "nightly", 0, 1)
    on = artifact_of(FIRST)
    for workflow in ("order", "news"):
        assert world.tell(StartRun("1", sender=sender, deployment=on), workflow) == ""
    assert (world.deployment("order"), world.deployment("news")) == ("dep_1", None)


def test_a_run_stays_where_it_began_and_a_restart_takes_the_active_one():
    world = World(app=())
    world.activate("dep_1")
    world.tell(StartRun("1"))
    world.tell(StartRun("1"), "ship")
    world.activate("dep_2")
    assert (world.deployment(), world.deployment("ship")) == ("dep_1", "dep_1")
    assert world.handed_out() == [11, 11]
    for value in ("order", "ship"):
        assert world.tell(RestartRun(), value) == ""
    assert world.deployment() == "dep_2"
    assert world.deployment("ship") == "dep_1", "the active one has no such workflow"
    assert sorted(world.handed_out()) == [11], "the other waits for its slot"
    assert world.run().slot is not None, "the limit is that of its deployment"
    world.activate("dep_1")
    world.asks(Raise(Failure("Error", "bad")), "ship")
    assert world.tell(RetryRun(), "ship") == ""
    assert world.run("ship").run_number == 2


@pytest.mark.parametrize(
    ("command", "result"),
    [
        (RetryRun(), "dep_1"),
        (RetryRun(deployment="active"), "dep_2"),
        (RetryRun(deployment="dep_2"), "dep_2"),
        (RetryRun(deployment="app"), "app"),
        (RetryRun(deployment="dep_none"), "deployment_not_found"),
        (RestartRun(), "dep_2"),
        (RestartRun("same"), "dep_1"),
        (RestartRun("dep_1"), "dep_1"),
        (RestartRun("app"), "app"),
    ],
)
def test_a_next_run_begins_on_the_deployment_that_is_requested(command: Command, result: str):
    world = World()
    world.activate("dep_1")
    world.tell(StartRun("1"))
    world.activate("dep_2")
    assert world.handed_out() == [11]
    world.asks(Raise(Failure("Error", "bad")))
    refused = world.tell(command)
    assert (refused or world.deployment()) == result


def test_a_retry_on_a_deployment_without_the_workflow_is_refused():
    world = World(app=())
    world.activate("dep_1")
    world.tell(StartRun("1"), "ship")
    world.activate("dep_2")
    world.handed_out()
    world.asks(Raise(Failure("Error", "bad")), "ship")
    assert world.tell(RetryRun(deployment="active"), "ship") == "WORKFLOW_NOT_FOUND"
    assert world.tell(RetryRun(deployment="app"), "ship") == "WORKFLOW_NOT_FOUND"
    assert world.tell(RetryRun(), "ship") == ""
    assert world.deployment("ship") == "dep_1"


def test_a_run_of_the_app_is_retried_there_and_restarted_on_the_active_deployment():
    world = World()
    world.tell(StartRun("1"))
    assert world.tell(RetryRun(deployment="active")) == "no_active_deployment"
    assert world.handed_out() == [APP]
    world.asks(Raise(Failure("Error", "bad")))
    world.activate("dep_1")
    assert world.tell(RetryRun()) == ""
    assert (world.deployment(), world.handed_out()) == ("app", [APP])
    assert world.tell(RestartRun("same")) == ""
    assert world.deployment() == "app"
    assert world.tell(RestartRun()) == ""
    assert world.deployment() == "dep_1"


def test_a_run_of_the_app_is_not_given_to_a_deployment():
    world = World(app=())
    world.activate("dep_1")
    world.tell(StartRun("1"))
    # As of a run that began when the app had the workflow.
    world.run().deployment = Artifact("app", "", "")
    assert world.handed_out() == []
    world.activate("dep_2")
    assert world.handed_out() == []
    assert [*world.owner.without_code] == ["order"]


def test_a_child_of_a_run_of_the_app_begins_in_the_app_if_that_has_its_workflow():
    world = World()
    world.activate("dep_1")
    for workflow, result in (("order", "app"), ("ship", "dep_1")):
        start = StartRun("1", PARENT, deployment=Artifact("app", "", ""))
        assert world.tell(start, workflow) == ""
        assert world.deployment(workflow) == result


@pytest.mark.parametrize(
    ("to", "refused"),
    [
        ("dep_2", ""),
        ("active", ""),
        ("app", "ALREADY_MOVED"),
        ("dep_none", "deployment_not_found"),
    ],
)
def test_a_run_that_waits_is_moved_to_other_code(to: str, refused: str):
    world = World()
    world.tell(StartRun("1"))
    world.activate("dep_2")
    assert world.handed_out() == [APP]
    world.asks(Suspend(0))
    assert world.tell(MoveRun(to)) == refused
    assert world.deployment() == ("app" if refused else "dep_2")
    assert world.owner.hosts_in_use() <= ({APP} if refused else set())
    for item in (PauseRun(), ResumeRun()):
        assert world.tell(item) == ""
    assert world.handed_out() == ([] if refused else [12])


def test_a_run_whose_code_is_missing_continues_when_it_is_moved():
    world = World(app=())
    world.activate("dep_1")
    world.tell(StartRun("1"))
    # As of a run that began when the app had the workflow.
    world.run().deployment = Artifact("app", "", "")
    assert world.handed_out() == []
    assert world.tell(MoveRun("dep_1")) == ""
    assert world.handed_out() == [11]
    assert world.tell(MoveRun("dep_2")) == ""
    assert world.handed_out() == [], "its code is running"
    world.asks(Suspend(0))
    for item in (PauseRun(), ResumeRun()):
        assert world.tell(item) == ""
    assert world.handed_out() == [12]


def test_a_run_is_not_moved_where_its_workflow_is_missing():
    world = World(app=())
    world.activate("dep_1")
    assert world.tell(MoveRun("dep_1"), "ship") == "INSTANCE_NOT_FOUND"
    world.tell(StartRun("1"), "ship")
    for to in ("dep_2", "app"):
        assert world.tell(MoveRun(to), "ship") == "WORKFLOW_NOT_FOUND"
    assert world.tell(TerminateRun(), "ship") == ""
    assert world.tell(MoveRun("dep_1"), "ship") == "INSTANCE_TERMINAL"


def test_a_run_of_a_graph_is_moved_only_to_its_own_definition():
    world = World(app=())
    for number, item in enumerate((graph("A"), graph("B"), graph("A")), 3):
        world.deployments.apply(deployed(f"dep_{number}", item))
    world.activate("dep_3")
    assert world.tell(StartRun("{}"), "plan") == ""
    assert world.tell(MoveRun("dep_4"), "plan") == "MIGRATION_REFUSED"
    assert world.tell(MoveRun("dep_5"), "plan") == ""
    assert world.deployment("plan") == "dep_5"


def test_params_are_held_to_the_schema_of_the_deployment():
    world = World()
    world.activate("dep_2")
    assert world.tell(StartRun('"a"')) == "INVALID_PARAMS"
    world.activate("dep_1")
    assert world.tell(StartRun('"a"')) == ""


def test_a_run_is_not_restarted_with_params_that_its_code_no_longer_takes():
    world = World()
    world.activate("dep_1")
    assert world.tell(StartRun('"a"')) == ""
    world.activate("dep_2")
    assert world.tell(RestartRun()) == "INVALID_PARAMS"
    assert world.run().run_number == 0
    world.activate("dep_1")
    assert world.tell(RestartRun()) == ""


def test_a_graph_stays_a_graph_whatever_is_deployed_under_its_name():
    world = World()
    world.activate("dep_2")
    assert world.tell(StartRun("1", kind=GraphEngine.kind), "board") != "WORKFLOW_NOT_FOUND"
    assert world.tell(StartRun("1"), "board", "o-2") == ""
    assert world.run("board", "o-2").kind == REPLAY.kind


def graph(of: str) -> DeployedWorkflow:
    made = GraphWorkflow(
        name="plan",
        initial_node_ref="a",
        nodes=[{"ref": "a", "task": "say"}],
        output_mapping={"of": repr(of)},
    )
    document, digest = json.dumps(made.to_dict()), made.graph().digest
    return of_graph(document, digest)


def of_graph(document: str, digest: str) -> DeployedWorkflow:
    return of("plan", kind=GraphEngine.kind, document=document, digest=digest)


def test_a_run_of_a_graph_begins_on_the_definition_of_its_deployment():
    world = World(app=())
    for number, item in enumerate((graph("A"), graph("B"), graph("A")), 3):
        world.deployments.apply(deployed(f"dep_{number}", item))
    world.activate("dep_3")
    assert world.tell(StartRun("{}"), "plan") == ""
    assert world.deployment("plan") == "dep_3"
    assert world.handed_out() == [13]
    run = world.run("plan")
    assert run.definition is not None
    assert run.definition.digest == graph("A").digest
    # A retry keeps its tokens, which belong to one definition.
    for active, command, result in (
        ("dep_4", RetryRun(), "dep_3"),
        ("dep_5", RetryRun(), "dep_3"),
        ("dep_5", RetryRun(deployment="active"), "dep_5"),
        ("dep_4", RetryRun(deployment="active"), "MIGRATION_REFUSED"),
        ("dep_4", RetryRun(deployment="dep_5"), "dep_5"),
        ("dep_4", RestartRun(), "dep_4"),
        ("dep_4", RestartRun("same"), "dep_3"),
    ):
        world.activate(active)
        made = world.code.for_new_run("plan", "o-1", command, run)
        if isinstance(made, Rejection):
            assert made.code == result
            continue
        assert made.deployment is not None
        assert made.deployment.name == result
    assert world.tell(RestartRun(), "plan") == ""
    definition = world.run("plan").definition
    assert definition is not None
    assert definition.digest == graph("B").digest


def test_a_graph_that_only_its_deployment_has_is_restarted_as_it_is_there():
    world = World(app=())
    world.deployments.apply(deployed("dep_3", graph("A")))
    world.activate("dep_3")
    assert world.tell(StartRun("{}"), "plan") == ""
    # The app has another of the same name; the definition and its tasks stay together.
    run = world.run("plan")
    world.activate("dep_1")
    made = world.code.for_new_run("plan", "o-1", RestartRun(), run)
    assert isinstance(made, RunSource)
    assert (made.deployment, made.document) == (run.deployment, graph("A").document)


def test_a_definition_that_this_release_refuses_begins_no_run():
    world = World(app=())
    world.deployments.apply(deployed("dep_3", of_graph('{"name": "plan"}', "00")))
    world.activate("dep_3")
    assert world.tell(StartRun("{}"), "plan") == "GRAPH_INVALID"


def test_a_run_without_a_deployment_follows_the_code():
    world = World(app=())
    world.activate("dep_1")
    world.tell(StartRun("1"), "news")
    assert world.handed_out() == [11]
    world.activate("dep_2")
    assert world.handed_out() == [], "its code is at work"
    world.asks(Suspend(0), "news")
    for item in (PauseRun(), ResumeRun()):
        assert world.tell(item, "news") == ""
    assert world.handed_out() == [12]
    assert world.owner.hosts_in_use() == {12}


def test_the_app_has_the_code_before_the_active_deployment():
    world = World()
    world.activate("dep_1")
    world.tell(StartRun("1"), "news")
    assert world.handed_out() == [APP]


def test_the_workflows_that_are_named_to_whoever_mistypes_one_are_those_of_authors():
    code = Code({"order": REPLAY.kind, "headwater-schedule": REPLAY.kind})
    refused = code.for_new_run("ordre", "o-1", StartRun("1"), None)
    assert isinstance(refused, Rejection)
    assert refused.message == (
        "expected one of the workflows order, found ordre; did you mean order?"
    )


def test_who_asks_for_what_is_deployed_and_not_active_is_told_where_it_is():
    world = World(app=())
    for value in ("dep_3", "dep_4"):
        world.deployments.apply(deployed(value, of("refund")))
    refused = world.code.for_new_run("refund", "o-1", StartRun("1"), None)
    assert isinstance(refused, Rejection)
    assert refused.message == (
        "expected one of the workflows board, found refund; dep_4 has it but is not active: "
        "`headwater deployments activate dep_4`"
    )
    world.activate("dep_4")
    assert isinstance(world.code.for_new_run("refund", "o-1", StartRun("1"), None), RunSource)


def test_what_waits_for_code_goes_on_when_that_is_deployed():
    world = World(app=())
    world.activate("dep_1")
    world.tell(StartRun("1"), "news")
    world.deployments.activations.clear()
    assert world.handed_out() == []
    assert [*world.owner.without_code] == ["news"]
    assert not world.owner.hosts_in_use()
    world.activate("dep_2")
    assert world.handed_out() == [12]


def test_what_became_ready_for_one_host_is_not_given_to_another_that_is_closed():
    world = World(app=())
    world.activate("dep_1")
    world.tell(StartRun("1"), "news")
    world.activate("dep_2")
    assert world.handed_out(closed={12}) == []
    assert world.owner.hosts_in_use() == {12}
    assert world.handed_out() == [12]


# --- shares of the new runs

IN_SHARE: Final = next(f"o-{n}" for n in range(1000) if is_in_share("order", f"o-{n}", 10))
OUTSIDE: Final = next(f"o-{n}" for n in range(1000) if not is_in_share("order", f"o-{n}", 90))
SCHEDULE: Final = Sender("headwater-schedule", "nightly", 0, 1)


def shared(percent: int = 10, *, app: Collection[str] = ()) -> World:
    """Of the new runs, the first deployment has most, and the second a share."""
    world = World(app=app)
    world.activate("dep_1")
    world.activate("dep_2", percent)
    return world


def test_instances_in_the_share_begin_on_its_deployment():
    world = shared()
    for name, expected in ((IN_SHARE, "dep_2"), (OUTSIDE, "dep_1")):
        assert world.tell(StartRun("1"), name=name) == ""
        assert world.run(name=name).deployment == artifact_of(world.deployments.by_id[expected])


def test_an_event_that_creates_its_instance_is_in_the_share_as_well():
    world = shared()
    assert world.tell(SendEvent("e", "go", "1", start="1"), name=IN_SHARE) == ""
    assert world.run(name=IN_SHARE).deployment == artifact_of(SECOND)


def test_what_the_schedules_of_the_active_deployment_start_is_in_the_share_as_well():
    world = shared()
    for name, expected in ((IN_SHARE, SECOND), (OUTSIDE, FIRST)):
        start = StartRun("1", sender=SCHEDULE, deployment=artifact_of(FIRST))
        assert world.tell(start, name=name) == ""
        assert world.run(name=name).deployment == artifact_of(expected)


def test_what_a_run_starts_stays_on_the_deployment_of_that_run():
    world = shared()
    sender = Sender("order", "o-0", 0, 1)
    for start in (StartRun("1", PARENT), StartRun("1", sender=sender)):
        command = msgspec.structs.replace(start, deployment=artifact_of(FIRST))
        assert world.tell(command, name=IN_SHARE) in {"", "INSTANCE_ID_ALREADY_EXISTS"}
        assert world.run(name=IN_SHARE).deployment == artifact_of(FIRST)


def test_a_deployment_with_a_share_that_lacks_the_workflow_gets_none_of_its_runs():
    world = shared(99)
    assert world.tell(StartRun("1"), "ship", "s-1") == ""
    assert world.run("ship", "s-1").deployment == artifact_of(FIRST)


def test_runs_that_follow_the_code_are_in_no_share():
    world = shared(99)
    assert world.tell(StartRun("1"), "news", "n-1") == ""
    assert world.run("news", "n-1").deployment is None
    assert world.handed_out() == [11]


def test_a_restart_is_in_the_share_and_a_retry_stays():
    world = World(app=())
    world.activate("dep_1")
    world.tell(StartRun("1"), name=IN_SHARE)
    run = world.run(name=IN_SHARE)
    world.activate("dep_2", 10)
    for command, expected in (
        (RestartRun(), "dep_2"),
        (RetryRun(), "dep_1"),
        (RetryRun(deployment="active"), "dep_1"),
    ):
        made = world.code.for_new_run("order", IN_SHARE, command, run)
        assert isinstance(made, RunSource)
        assert made.deployment is not None
        assert made.deployment.name == expected


# --- removals


def test_a_closed_deployment_gets_no_new_runs_but_those_of_its_own_runs():
    world = World(app=())
    world.activate("dep_1")
    world.activate("dep_2")
    world.retire("dep_1", CLOSED)
    on_first = artifact_of(FIRST)
    assert world.tell(StartRun("1", deployment=on_first)) == "deployment_removed"
    assert world.tell(StartRun("1", PARENT, deployment=on_first), "ship", "s-1") == ""
    assert world.run("ship", "s-1").deployment == on_first
    world.retire("dep_1", REOPENED)
    assert world.tell(StartRun("1", deployment=on_first)) == ""


def test_what_the_last_runs_of_a_removed_deployment_started_uses_the_active_one():
    world = World(app=())
    world.activate("dep_1")
    world.activate("dep_2")
    world.retire("dep_1", CLOSED)
    world.retire("dep_1", REMOVED)
    on_first = artifact_of(FIRST)
    assert world.tell(StartRun("1", deployment=on_first)) == "deployment_removed"
    sender = Sender("order", "o-0", 0, 1)
    for name, start in (("o-2", StartRun("1", PARENT)), ("o-3", StartRun("1", sender=sender))):
        command = msgspec.structs.replace(start, deployment=on_first)
        assert world.tell(command, name=name) == ""
        assert world.run(name=name).deployment == artifact_of(SECOND)


def test_the_next_run_of_one_on_a_removed_deployment_needs_another():
    world = World(app=())
    world.activate("dep_1")
    world.tell(StartRun("1"))
    run = world.run()
    world.activate("dep_2")
    world.retire("dep_1", CLOSED)
    world.retire("dep_1", REMOVED)
    for command in (RetryRun(), RestartRun("same"), RestartRun("dep_1")):
        refused = world.code.for_new_run("order", "o-1", command, run)
        assert isinstance(refused, Rejection)
        assert refused.code == "deployment_removed"
        assert "deploy the same artifact again" in refused.message
    for next_command in (RetryRun(deployment="active"), RestartRun()):
        made = world.code.for_new_run("order", "o-1", next_command, run)
        assert isinstance(made, RunSource)
        assert made.deployment == artifact_of(SECOND)
    assert world.tell(MoveRun("dep_1")) == "deployment_removed"

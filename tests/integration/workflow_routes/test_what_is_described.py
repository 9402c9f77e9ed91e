"""The workflow routes as OpenAPI describes them, asked by schemathesis, on real parts.

Goal: whatever is asked, no answer is a 5xx, none has a status or a content type that is not
described, and each is as its schema says. Method: cases at the edges of every parameter and body,
valid and not, then random ones, the same in each run; about nobody's instances, as they are drawn,
and about instances that exist and have something to tell.

`min_position` has no pattern in the schema, so that what is refused there is asked, too.

The last of this folder by name: from here on there are instances of all kinds.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any, Final

import httpx2
import pytest
from schemathesis import Case, openapi
from schemathesis import pytest as parametrized
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headwater.gateway.api.workflows.job_requests import WAIT_MAX_MS
from tests.e2e.system import System
from tests.openapi import without_long_arrays
from tests.waiting import ANSWERED_WITHIN_S

pytest_plugins = ["schemathesis.pytest.plugin"]

API: Final = "/api/workflows"
#: The key of the service, and beside it that of those who may tick.
KEYS: Final = {"x-api-key": "dev-workflow-key", "authorization": "Bearer the-tick-key"}
#: What the world has a key of its own for.
WORLD: Final = "/v1/world/"
WORLD_KEY: Final = {"x-api-key": "dev-world-key"}

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

#: A stream is described as the text that it is; its schema would be asked of each event.
OF_STREAMS: Final = [check for check in CHECKS if check is not response_schema_conformance]

#: Nothing that was answered has a say in what is asked next: each run asks the same.
CONFIG: Final[dict[str, Any]] = {
    "seed": 20261121,
    "headers": KEYS,
    "request-timeout": ANSWERED_WITHIN_S,
    # A hundred instances with labels are drawn seldom: too large a body is drawn again.
    "suppress-health-check": ["filter_too_much"],
    "generation": {"deterministic": True, "with-security-parameters": False},
    "phases": {
        "fuzzing": {
            "generation": {"max-examples": 2},
            "extra-data-sources": {"responses": False},
            "error-feedback": {"enabled": False},
        },
        "coverage": {"unexpected-methods": []},
        "stateful": {"enabled": False},
    },
}

#: Params of the instances that exist; each is named as its workflow is.
INSTANCES: Final = {
    "waiting": 1_000_000,
    "choosy": None,
    "telling": 3,
    "flaky": None,
    "voting": {"voters": ["ada", "late", "nobody"], "file": ""},
}
STATUSES: Final = {"telling": "complete", "flaky": "errored", "choosy": "waiting"}
#: Which of them a route is asked about, one after the other, so that all they have to tell shows.
ASKED: Final = {
    "listInstances": ("choosy", "telling"),
    "listAllInstances": ("choosy",),
    "getInstance": ("choosy", "flaky", "telling"),
    "getHistory": ("telling", "flaky", "choosy"),
    "sendEvent": ("waiting", "telling"),
    # It tells to the end, so of those that have ended alone.
    "followInstance": ("telling",),
    "retryInstance": ("flaky", "waiting"),
    "introspectTokens": ("voting", "telling"),
    "explainInstance": ("voting", "telling"),
    "traceInstance": ("voting",),
    "drawInstance": ("voting", "telling"),
    "drawInstanceInMermaid": ("voting",),
    "simulateRouting": ("voting", "telling"),
    "simulateSynchronization": ("voting",),
    "getRun": ("telling", "flaky", "choosy"),
    "cancelRun": ("telling", "flaky"),
}
OF_OTHERS: Final = ("waiting", "telling")


@pytest.fixture(autouse=True)
def named(request: pytest.FixtureRequest) -> None:
    """Gives a test what schemathesis 4.32 looks for and pytest 9.2 no longer has."""
    request.node._nodeid = request.node.nodeid


@pytest.fixture(scope="module")
def api(system: System) -> Iterator[httpx2.Client]:
    with httpx2.Client(
        base_url=system.url() + API, headers=KEYS, timeout=ANSWERED_WITHIN_S
    ) as client:
        yield client


@pytest.fixture(scope="module")
def described(system: System, api: httpx2.Client) -> BaseSchema:
    """What the gateway says of its routes; there are instances to ask it about."""
    for workflow, params in INSTANCES.items():
        system.wait(partial(_begun, api, workflow, params), f"{workflow} to begin")
    sent = api.post(_path("telling", "/events"), json={"type": "end"})
    assert sent.is_success
    for workflow, status in STATUSES.items():
        system.wait(partial(_is, api, workflow, status), f"{workflow} to be {status}")
    document = without_long_arrays(api.get(f"{system.url()}/schema/openapi.json").json())
    config = SchemathesisConfig.from_dict(CONFIG | {"base-url": system.url()})
    return openapi.from_dict(document, config=config)


def _begun(api: httpx2.Client, workflow: str, params: object) -> bool:
    answer = api.post(f"/workflows/{workflow}/instances", json={"id": workflow, "params": params})
    return answer.status_code in (200, 409)


def _is(api: httpx2.Client, workflow: str, status: str) -> bool:
    return bool(api.get(_path(workflow)).json()["details"]["status"] == status)


def _path(workflow: str, verb: str = "") -> str:
    return f"/workflows/{workflow}/instances/{workflow}{verb}"


routes = parametrized.from_fixture("described").include(
    path_regex="^/(api/(workflows|jobs)|v1/(queues|runs|world))(/|$)"
)


@routes.parametrize()
def test_whatever_is_asked_is_answered_as_described(case: Case[Any]) -> None:
    ask(case)


def ask(case: Case[Any]) -> None:
    """Asks, but for jobs not as long as it says: what is described does not depend on it."""
    wait_ms = case.body.get("waitMs") if isinstance(case.body, dict) else None
    if isinstance(wait_ms, int) and 0 < wait_ms <= WAIT_MAX_MS:
        case.body["waitMs"] = 1
    follows = case.operation.definition.raw["operationId"] == "followInstance"
    if follows and _goes_on(case):
        return
    answer = case.call_and_validate(
        checks=OF_STREAMS if follows else CHECKS,
        headers=WORLD_KEY if case.path.startswith(WORLD) else None,
    )
    assert answer.status_code != 401, "expected the keys to be those of the route"


def _goes_on(case: Case[Any]) -> bool:
    """Whether an instance has not ended: its stream would last as long. Others begin and restart
    instances, some by the names that are examples of the description."""
    path = case.formatted_path.removesuffix("/events-stream")
    answer = httpx2.get(f"{case.operation.base_url}{path}", headers=KEYS, timeout=ANSWERED_WITHIN_S)
    if not answer.is_success:
        return False
    return answer.json()["details"]["status"] not in {"complete", "errored", "terminated"}


_turns = {name: cycle(workflows) for name, workflows in ASKED.items()}
_turn = defaultdict(lambda: cycle(OF_OTHERS), _turns)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{API}/workflows/telling/instances/batch", {"instances": [{"id": "i"}] * 101}),
        ("/api/jobs/activate", {"worker": "w", "types": ["t"] * 101}),
    ],
)
def test_more_items_than_there_may_be_are_refused(
    system: System, api: httpx2.Client, path: str, body: object
) -> None:
    answer = api.post(system.url() + path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_body"), answer.text
    assert "of length <= 100" in answer.json()["detail"]


OF_NONE: Final = ["listWorkflows", "tick", "listJobs", "activateJobs", "completeJob", "failJob",
                  "extendJob", "createRun", "listRuns", "publishMessage",
                  "createEvent"]  # fmt: skip


@routes.exclude(operation_id=OF_NONE).parametrize()
def test_whatever_is_asked_about_what_exists_is_answered_as_described(case: Case[Any]) -> None:
    if not (case.meta and case.meta.generation.mode.is_positive):
        return  # What is refused is refused whatever exists, and was asked above.
    workflow = next(_turn[str(case.operation.definition.raw["operationId"])])
    names = {"workflowName", "instanceId", "runId"} & case.path_parameters.keys()
    case.path_parameters.update(dict.fromkeys(names, workflow))
    ask(case)

"""Ticks over HTTP: their key, and how they are shared by workers."""

from headwater.gateway.api.workflows import WorkflowHooks
from tests.ticked import serving
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.workflow_fakes import MemoryCommands
from tests.unit.gateway.workflow_routes.workflow_requests import BASE, KEY, TICK_KEY, service


def test_ticks_are_off_unless_they_have_an_address_and_a_key(commands: MemoryCommands) -> None:
    for settings in ({}, {"tick_url": "http://127.0.0.1:1"}, {"tick_key": "the-tick-key"}):
        with service(commands, WorkflowHooks(), **settings) as client:
            answer = client.post(f"{BASE}/_runner/tick", headers=KEY | TICK_KEY)
            problem = assert_problem(answer, 404, "tick_disabled")
            assert "HEADWATER_TICK_URL" in problem["detail"]


def test_a_tick_asks_for_its_own_key_and_for_a_worker(commands: MemoryCommands) -> None:
    settings = {"tick_url": "http://127.0.0.1:1", "tick_key": "the-tick-key"}
    with service(commands, WorkflowHooks(), **settings) as client:
        path = f"{BASE}/_runner/tick"
        assert_problem(client.post(path), 401, "unauthorized")
        assert_problem(client.post(path, headers=KEY), 403, "insufficient_scope")
        bad = client.post(path, json={"maxSteps": 0}, headers=TICK_KEY)
        assert assert_problem(bad, 400, "invalid_body")["field"] == "maxSteps"
        assert_problem(client.post(path, headers=TICK_KEY), 503, "worker_unavailable")


def test_a_tick_reaches_all_ticked_workers(commands: MemoryCommands) -> None:
    path = f"{BASE}/_runner/tick"
    with serving() as one, serving() as two:
        urls = f"{one.url}, http://127.0.0.1:1, {two.url}"
        settings = {"tick_url": urls, "tick_key": "the-tick-key"}
        with service(commands, WorkflowHooks(), **settings) as client:
            assert client.post(path, headers=TICK_KEY).json() == {"processed": 6}
    assert (one.heard, two.heard) == ([{}], [{}])


def test_what_a_tick_may_do_is_shared_by_the_workers(commands: MemoryCommands) -> None:
    path = f"{BASE}/_runner/tick"
    with serving(4) as one, serving(4) as two:
        settings = {"tick_url": f"{one.url},{two.url}", "tick_key": "the-tick-key"}
        with service(commands, WorkflowHooks(), **settings) as client:
            requested = {"maxInstances": 8, "maxSteps": 20}
            assert client.post(path, json=requested, headers=TICK_KEY).json() == {"processed": 9}
            requested = {"maxSteps": 4}
            assert client.post(path, json=requested, headers=TICK_KEY).json() == {"processed": 3}
    assert two.heard == [
        {"maxInstances": 8, "maxSteps": 20, "continuing": True},
        {"maxInstances": 2, "maxSteps": 12},
    ]
    first = {"maxInstances": 5, "maxSteps": 16, "continuing": True}
    another = {"maxSteps": 4, "continuing": True}
    assert one.heard == [first, another], "with each tick another one is the first"

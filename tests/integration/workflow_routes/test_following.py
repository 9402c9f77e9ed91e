"""An instance is followed as it goes on."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx2

from tests.e2e.system import System
from tests.integration.workflow_routes.asking import KEY, base, create, follow, of, problem, until


def test_an_instance_is_followed_from_its_beginning_to_its_end(
    api: httpx2.Client, told: str
) -> None:
    messages = follow(api, of("telling", told, "events-stream"))
    history = api.get(of("telling", told, "history"), params={"includeLogs": "true"}).json()
    by_kind = {
        kind: [data for event, _, data in messages if event == kind]
        for kind in ("step", "event", "log", "status", "end")
    }
    by_key = {step["stepKey"]: step for step in by_kind["step"]}
    assert by_key == {step["stepKey"]: step for step in history["steps"]}
    assert by_kind["event"] == history["events"]
    assert by_kind["log"] == history["logs"]
    done = {"status": "complete", "output": 1, "runNumber": 0}
    assert by_kind["status"][-1] == done
    assert by_kind["end"] == [done]
    assert messages[-1][0] == "end"


def test_a_stream_goes_on_where_it_broke_off(api: httpx2.Client, told: str) -> None:
    path = of("telling", told, "events-stream")
    whole = follow(api, path)
    for count in range(1, len(whole)):
        first = follow(api, path, stop_after=count)
        assert first == whole[:count]
        last_id = first[-1][1]
        rest = follow(api, path, **({"last-event-id": last_id} if last_id else {}))
        # The first message that has an id brought it; those behind it have none of their own.
        heard = [item[1] for item in whole].index(last_id) + 1 if last_id else 0
        assert whole[:heard] + rest == whole


def test_what_happens_while_it_is_followed_is_told(api: httpx2.Client, system: System) -> None:
    name = create(api, "waiting", 2)
    with (
        httpx2.Client(base_url=base(system, "gateway2"), headers=KEY, timeout=30) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        follows = [
            pool.submit(follow, client, of("waiting", name, "events-stream"))
            for client in (api, other)
        ]
        for payload in (1, 2):
            time.sleep(0.3)
            assert not any(item.done() for item in follows)
            api.post(of("waiting", name, "events"), json={"type": "go", "payload": payload})
        for entry in follows:
            messages = entry.result()
            assert messages[-1][0] == "end"
            assert messages[-1][2]["output"] == [1, 2]
            taken = [data["payload"] for event, _, data in messages if event == "event"]
            assert taken[-1] == 2


def test_an_instance_that_was_restarted_is_followed_in_its_new_run(api: httpx2.Client) -> None:
    name = create(api, "echo", 1)
    until(api, "echo", name, "complete")
    path = of("echo", name, "events-stream")
    last_id = follow(api, path)[-1][1]
    api.post(of("echo", name, "restart"))
    until(api, "echo", name, "complete")
    messages = follow(api, path, **{"last-event-id": last_id})
    assert {data["runNumber"] for _, _, data in messages} == {1}
    again = follow(api, f"{path}?lastEventId={messages[-1][1]}")
    assert [event for event, _, _ in again] == ["end"]


def test_a_stream_whose_start_makes_no_sense_is_refused(api: httpx2.Client, told: str) -> None:
    path = of("telling", told, "events-stream")
    answer = api.get(path, headers={"last-event-id": "abc"})
    assert problem(answer) == (400, "invalid_parameter")
    assert answer.json()["field"] == "Last-Event-ID"


def test_a_gateway_that_is_told_to_end_does_so_though_somebody_follows(
    system: System, api: httpx2.Client
) -> None:
    name = create(api, "waiting")
    path = of("waiting", name, "events-stream")
    with (
        httpx2.Client(base_url=base(system, "gateway2"), headers=KEY, timeout=30) as two,
        ThreadPoolExecutor(1) as pool,
    ):
        begun = Event()
        two.event_hooks = {"response": [lambda _: begun.set()]}
        follows = pool.submit(follow, two, path)
        assert begun.wait(60)
        gateway = system.parts["gateway2"]
        system.stop("gateway2")
        assert gateway.returncode == 0, "it had to be killed"
        assert all(event != "end" for event, _, _ in follows.result())
    system.start("gateway2")

"""Two gateways, and what is asked of both at once."""

import asyncio
from typing import Any

import httpx2

from tests.e2e.system import System
from tests.integration.workflow_routes.asking import ASYNC, at_once, fresh, of, problem


def position_of(written: httpx2.Response) -> dict[str, str]:
    """What a read has to name: nothing after 200; on a busy machine the answer may be 202."""
    assert written.status_code in {200, 202}
    if written.status_code == 200:
        return {}
    return {"min_position": written.headers["headwater-position"]}


def test_what_was_written_is_read_also_from_another_gateway(system: System) -> None:
    async def act(one: httpx2.AsyncClient, two: httpx2.AsyncClient) -> None:
        async def write_and_read() -> None:
            name = fresh()
            made = await one.post(of("waiting"), json={"id": name})
            written = position_of(made)
            assert (await one.get(of("waiting", name), params=written)).status_code == 200
            assert (await two.get(of("waiting", name), params=written)).status_code == 200
            paused = await two.post(of("waiting", name, "pause"))
            written = position_of(paused)
            for gateway in (one, two):
                result = (await gateway.get(of("waiting", name), params=written)).json()
                assert result["details"] == {"status": "paused"}

        await asyncio.gather(*(write_and_read() for _number in range(20)))

    at_once(system, act)


def test_who_does_not_wait_can_wait_later_elsewhere(system: System) -> None:
    async def act(one: httpx2.AsyncClient, two: httpx2.AsyncClient) -> None:
        async def write_and_read() -> None:
            name = fresh()
            made = await one.post(of("waiting"), json={"id": name}, headers=ASYNC)
            assert (made.status_code, made.headers["preference-applied"]) == (202, "respond-async")
            position = made.headers["headwater-position"]
            requested = {"min_position": position}
            result = await two.get(of("waiting", name), params=requested)
            assert result.status_code == 200, result.text
            partition, offset = position.split("@")
            stated = result.headers["headwater-position"].split("@")
            assert stated[0] == partition
            assert int(stated[1]) >= int(offset)

        await asyncio.gather(*(write_and_read() for _number in range(20)))

    at_once(system, act)


def test_the_position_of_a_listing_is_that_of_all_partitions(api: httpx2.Client) -> None:
    position = api.get("/workflows").headers["headwater-position"]
    assert [part.split("@")[0] for part in position.split(", ")] == [
        f"workflow-history/{partition}" for partition in range(4)
    ]
    assert api.get(of("waiting"), params={"min_position": position}).status_code == 200


# -- many at once


def test_of_many_creates_of_one_id_through_two_gateways_one_succeeds(system: System) -> None:
    async def act(one: httpx2.AsyncClient, two: httpx2.AsyncClient) -> None:
        body = {"id": fresh()}
        answers = await asyncio.gather(
            *((one, two)[number % 2].post(of("waiting"), json=body) for number in range(50))
        )
        codes = sorted(answer.status_code for answer in answers)
        assert codes == [200, *[409] * 49]

    at_once(system, act)


def test_under_a_key_one_instance_and_one_event_come_of_many_requests_to_two_gateways(
    system: System,
) -> None:
    async def act(one: httpx2.AsyncClient, two: httpx2.AsyncClient) -> None:
        async def send(path: str, body: object) -> list[httpx2.Response]:
            key = {"idempotency-key": f"key-of-{path}"}
            requested = (item.post(path, json=body, headers=key) for item in (one, two) * 4)
            return await asyncio.gather(*requested)

        made = await send(of("waiting"), {"params": 2})
        assert {answer.status_code for answer in made} == {200}
        (name,) = {answer.json()["id"] for answer in made}
        reported = await send(of("waiting", name, "events"), {"type": "go", "payload": "once"})
        assert {answer.status_code for answer in reported} == {200}
        replayed = [answer.headers.get("idempotent-replayed") for answer in (*made, *reported)]
        assert sorted(map(str, replayed)) == ["None"] * 2 + ["true"] * 14
        history = (await two.get(of("waiting", name, "history"))).json()
        assert [event["payload"] for event in history["events"]] == ["once"]
        other = await send(of("waiting", name, "events"), {"type": "go", "payload": "other"})
        assert {problem(answer) for answer in other} == {(409, "idempotency_conflict")}

    at_once(system, act)


def test_an_event_that_is_sent_while_its_wait_begins_is_not_lost(system: System) -> None:
    async def act(one: httpx2.AsyncClient, two: httpx2.AsyncClient) -> None:
        async def play(number: int) -> None:
            name = fresh()
            made = await one.post(of("waiting"), json={"id": name, "params": 3}, headers=ASYNC)
            assert made.status_code == 202
            await asyncio.sleep(number / 2_000)
            sent = await asyncio.gather(
                *(
                    gateway.post(
                        of("waiting", name, "events"),
                        json={"type": "go", "payload": payload},
                        headers=ASYNC,
                    )
                    for payload, gateway in enumerate((one, two, one))
                )
            )
            assert [answer.status_code for answer in sent] == [202] * 3
            result = await ended(two, "waiting", name)
            assert sorted(result["output"]) == [0, 1, 2]

        await asyncio.gather(*(play(number) for number in range(30)))

    at_once(system, act)


async def ended(gateway: httpx2.AsyncClient, workflow: str, name: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            result = (await gateway.get(of(workflow, name))).json()["details"]
            if result["status"] in ("complete", "errored", "terminated"):
                return dict(result)
            await asyncio.sleep(0.05)


def test_of_an_end_and_a_termination_one_happens(system: System) -> None:
    async def act(one: httpx2.AsyncClient, two: httpx2.AsyncClient) -> None:
        async def race(number: int) -> str:
            name = fresh()
            await one.post(of("waiting"), json={"id": name}, headers=ASYNC)
            event = one.post(of("waiting", name, "events"), json={"type": "go"}, headers=ASYNC)
            sends = asyncio.create_task(event)
            await asyncio.sleep(number / 2_000)
            ends = await two.post(of("waiting", name, "terminate"))
            sent = await sends
            result = (await ended(two, "waiting", name))["status"]
            assert (ends.status_code, result) in ((200, "terminated"), (409, "complete"))
            assert sent.status_code == 202 or problem(sent) == (409, "INSTANCE_TERMINAL")
            return str(result)

        await asyncio.gather(*(race(number) for number in range(30)))

    at_once(system, act)


def test_pauses_and_events_repeated_have_one_legal_outcome_each(system: System) -> None:
    async def act(one: httpx2.AsyncClient, two: httpx2.AsyncClient) -> None:
        name = fresh()
        await one.post(of("waiting"), json={"id": name, "params": 10})
        gateways = (one, two)

        async def all_of(verb: str, body: object = None) -> list[httpx2.Response]:
            return await asyncio.gather(
                *(
                    gateways[number % 2].post(of("waiting", name, verb), json=body)
                    for number in range(10)
                )
            )

        for verb, states in (("pause", {"paused"}), ("resume", {"active", "waiting"})):
            answers = await all_of(verb)
            assert {answer.status_code for answer in answers} == {200}
            assert {answer.json()["status"]["status"] for answer in answers} <= states
        await all_of("pause")
        sent = await all_of("events", {"type": "go", "payload": 1})
        assert {answer.json()["status"]["status"] for answer in sent} == {"paused"}
        history = (await one.get(of("waiting", name, "history"))).json()
        assert [event["deliveredAt"] for event in history["events"]] == [None] * 10
        await all_of("resume")
        assert (await ended(two, "waiting", name))["output"] == [1] * 10

    at_once(system, act)

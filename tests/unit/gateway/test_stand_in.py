"""The stand-in for Terra, as far as it needs no process of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from headwater.gateway.api.users.lab_reports import FILE_BYTES_MAX
from headwater.gateway.local.terra_stand_in.app import create_stand_in
from headwater.gateway.local.terra_stand_in.people import Person, StandIn

KEYS = {"dev-id": "test", "x-api-key": "test"}
NOW_MS = 1_782_900_000_000


@asynccontextmanager
async def playing(setup: StandIn) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_stand_in(setup, lambda: NOW_MS, ())
    transport = httpx2.ASGITransport(app)
    async with (
        app.lifespan(),
        httpx2.AsyncClient(transport=transport, base_url=setup.url) as client,
    ):
        yield client


@pytest.mark.parametrize("data", [True, False])
def test_without_data_a_request_is_taken_and_nothing_is_posted(data: bool):
    person = Person("p1", "GARMIN", "user_1", "DAILY", "2026-01-01T00:00:00+00:00")
    nowhere = "http://127.0.0.1:1/webhooks/terra"
    setup = StandIn(target=nowhere, secret="s", url="http://here", data=data, people=(person,))

    async def scenario() -> None:
        # Nobody listens where it posts to: what it owes stays.
        async with playing(setup) as client:
            expected = {"user_id": "p1", "start_date": "2026-06-28"}
            answer = await client.get("/v2/daily", params=expected, headers=KEYS)
            assert (answer.status_code, answer.json()["status"]) == (200, "processing")
            result = (await client.get("/stand-in")).json()
        assert result["counts"]["requests for data"] == 1
        assert (result["waiting"] > 0) is data

    asyncio.run(scenario())


def test_a_lab_report_of_the_largest_size_is_taken() -> None:
    setup = StandIn(target="http://127.0.0.1:1", secret="s", url="http://here")
    report = ("report.pdf", b"%PDF" + b"\0" * (FILE_BYTES_MAX - 4), "application/pdf")

    async def scenario() -> httpx2.Response:
        async with playing(setup) as client:
            return await client.post(
                "/v2/lab-reports",
                data={"reference_id": "user_1"},
                files={"files": report},
                headers=KEYS,
            )

    answer = asyncio.run(scenario())
    assert (answer.status_code, answer.json()["current_status"]) == (202, "processing")

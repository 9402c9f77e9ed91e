"""Terra's client and the system's own workflows against a real stand-in, whatever it does to them.

The workflows run in the harness, whose time is its own: a retry after an hour takes no time here.
What they ask for is asked over HTTP of the stand-in, a process that can be made to fail and to die,
and what comes of it is taken by a server that remembers everything.
"""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime
from hashlib import md5
from pathlib import Path

import httpx2
import pytest

from headwater.gateway.builtin.blobs.folder import FolderBlobs
from headwater.gateway.builtin.terra.answers import TerraFailed, TerraRefused
from headwater.gateway.builtin.terra.client import DATA_TYPES, Terra
from headwater.gateway.builtin.terra_workflows import TerraWorkflows
from headwater.gateway.local.terra_stand_in.posting import DIED
from headwater.gateway.settings.terra import TerraAccess, TerraNotConfigured
from headwater.projections.deliveries.users import Connection
from headwater.schemas.providers.headwater import (
    ConnectionClosed,
    ConnectionListed,
    LabSubmitted,
    SystemEvent,
)
from headwater.streams.harness.handles import TestInstance
from headwater.streams.harness.workflow_test import WorkflowTest
from tests.terra import HASTE, KEYS, StandIn, Taken, taking
from tests.waiting import wait_until

DAY = date(2026, 11, 22)
USER = "t-1"


@pytest.fixture(scope="module")
def taken() -> Iterator[Taken]:
    with taking() as server:
        yield server


@pytest.fixture(scope="module")
def process(scratch: Path, taken: Taken) -> Iterator[StandIn]:
    directory = scratch / "terra"
    directory.mkdir()
    with StandIn(directory, taken.url) as running:
        yield running


@pytest.fixture
def terra(process: StandIn, taken: Taken) -> StandIn:
    """The stand-in, with nothing on its way; whatever it was told before."""
    process.work()
    wait_until(lambda: process.look()["waiting"] == 0, "everything to be posted")
    taken.bodies.clear()
    return process


class Outside:
    """What the workflows need: Terra, and what a test names; it remembers what it was told."""

    def __init__(
        self, terra: Terra, connections: Sequence[str] = (), folder: Path | None = None
    ) -> None:
        self._terra = terra
        self._folder = folder
        self.told: list[SystemEvent] = []
        self._connections = sorted(connections)
        self.status: str | None = "submitted"

    async def terra(self) -> Terra:
        return self._terra

    async def connections(self) -> "Outside":
        return self

    async def connections_of(self, user_id: str) -> list[Connection]:
        assert user_id == "user_1"
        return [connection(item) for item in self._connections]

    async def lab_status(self, upload_id: str) -> str | None:
        assert upload_id == "up-1"
        return self.status

    async def blobs(self) -> FolderBlobs:
        assert self._folder is not None
        return FolderBlobs(self._folder)

    async def facts(self) -> "Outside":
        return self

    async def publish_fact(self, fact: SystemEvent, *, request_id: str) -> None:
        assert request_id
        self.told.append(fact)

    async def active_connections(self, *, after: str, limit: int) -> list[str]:
        ordered = sorted(self._connections, key=hashed)
        return [item for item in ordered if hashed(item) > after][:limit]

    async def active_connections_of(self, digests: Collection[str]) -> list[str]:
        return [connection for connection in self._connections if hashed(connection) in digests]


def connection(terra_user_id: str) -> Connection:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    return Connection(
        terra_user_id=terra_user_id,
        provider="GARMIN",
        active=True,
        reference_id="user_1",
        scopes=None,
        connected_at=since,
        deactivated_at=None,
    )


def hashed(connection: str) -> str:
    return md5(connection.encode(), usedforsecurity=False).hexdigest()


@asynccontextmanager
async def system(terra: Terra, connections: Sequence[str] = ()) -> AsyncIterator[WorkflowTest]:
    async with terra:
        workflows = TerraWorkflows(Outside(terra, connections), lambda: 7).workflows
        start = "2026-11-22T03:00:00Z"
        async with WorkflowTest(workflows, start=start) as test:
            yield test


def counts(**others: int) -> dict[str, int]:
    return {"taken": 0, "refused": 0, "unsupported": 0, "unknown_to_terra": 0} | others


async def backfilled(test: WorkflowTest) -> TestInstance:
    params = {"terra_user_id": USER, "user_id": "user_1", "until": DAY.isoformat()}
    instance = await test.create("terra-backfill", id=f"{USER}-0", params=params)
    await test.run_until_idle()
    return instance


def all_days(taken: Taken, terra: StandIn, number: int) -> None:
    """Waits for the days of an import, and sees that each came."""
    wait_until(lambda: terra.look()["waiting"] == 0, "everything to be posted")
    days = [date.fromordinal(DAY.toordinal() - back).isoformat() for back in range(number + 1)]
    assert sorted(set(taken.days_of("daily"))) == sorted(days)
    assert taken.unsigned == 0


# -- the client


async def _fails(terra: Terra, kind: type[Exception], match: str) -> None:
    async with terra:
        with pytest.raises(kind, match=match):
            await terra.request_data("daily", USER, DAY, DAY)


def test_without_a_developer_id_nothing_is_asked():
    access = TerraAccess(api="http://127.0.0.1:1", dev_id="", api_key="k")
    terra = Terra(access, draw=lambda: 0.0, wall_s=time.time)
    asyncio.run(_fails(terra, TerraNotConfigured, "set HEADWATER_TERRA_DEV_ID"))


def test_nobody_there_is_an_error_that_says_where():
    access = TerraAccess(api="http://127.0.0.1:1", dev_id="d", api_key="k")
    terra = Terra(access, draw=lambda: 0.0, wall_s=time.time, attempts=1)
    asyncio.run(_fails(terra, TerraFailed, "no response to GET http://127.0.0.1:1/daily"))


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headwater.gateway.builtin.terra.client._WHOLE_S", 0.3)

    left = asyncio.Event()

    async def drips(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        with suppress(OSError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        left.set()

    async def act() -> None:
        server = await asyncio.start_server(drips, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        access = TerraAccess(api=f"http://127.0.0.1:{port}", dev_id="d", api_key="k")
        terra = Terra(access, draw=lambda: 0.0, wall_s=time.time, attempts=1)
        async with server, asyncio.timeout(60):
            await _fails(terra, TerraFailed, "no response to .*: TimeoutError")
            await left.wait()

    asyncio.run(act())


def test_a_lab_report_may_take_longer_to_send_than_its_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headwater.gateway.builtin.terra.client._WHOLE_S", 0.5)

    async def takes_its_time(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = 0
        while (line := await reader.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        # A slow line: the time of an answer is over before the report is here.
        await asyncio.sleep(1.0)
        await reader.readexactly(length)
        body = b'{"upload_id": "u1"}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async def act() -> tuple[str, str]:
        server = await asyncio.start_server(takes_its_time, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        access = TerraAccess(api=f"http://127.0.0.1:{port}", dev_id="d", api_key="k")
        terra = Terra(access, draw=lambda: 0.0, wall_s=time.time, attempts=1)
        report = {
            "name": "a.pdf",
            "content_type": "application/pdf",
            "content": bytes(10 * 1024 * 1024),
        }
        async with server, asyncio.timeout(60), terra:
            return await terra.upload_lab_report("user_a", **report)

    assert asyncio.run(act())[0] == "u1"


def test_a_refusal_says_what_terra_said_and_is_not_repeated(terra: StandIn):
    async def act() -> None:
        async with terra.client() as client:
            with pytest.raises(
                TerraRefused, match="answered 404 Not Found: user not found"
            ) as caught:
                await client.request_data("daily", "nobody", DAY, DAY)
            assert caught.value.is_unknown
            with pytest.raises(TerraRefused, match="invalid start_date"):
                await client.request_data("daily", USER, DAY, date(2026, 1, 1))

    terra.add(USER)
    asyncio.run(act())


@pytest.mark.parametrize(("status", "header"), [(429, "1"), (503, None), (500, None)])
def test_what_passes_is_asked_again_and_not_before_retry_after(
    terra: StandIn, status: int, header: str | None
):
    async def act() -> None:
        async with terra.client() as client:
            assert await client.request_data("daily", USER, DAY, DAY)

    terra.add(USER)
    terra.fail("status", status=status, retry_after=header, path="/v2/daily")
    terra.slept.clear()
    began_s = time.monotonic()
    asyncio.run(act())
    assert terra.slept == [pytest.approx(0.25)]
    assert time.monotonic() - began_s >= (float(header) / HASTE if header else 0.0)


def test_a_retry_after_of_an_hour_is_not_waited_for(terra: StandIn):
    terra.fail("status", status=429, retry_after="3600", path="/v2/daily")
    asyncio.run(_fails(terra.client(), TerraFailed, "answered 429 Too Many Requests"))


def test_an_answer_that_is_none_of_terras_is_not_taken_for_one(terra: StandIn):
    api = f"{terra.url}/widget/none"
    asyncio.run(_fails(terra.client(api=api), TerraRefused, "answered 404"))


def test_the_connections_of_a_user_are_found_on_every_page(terra: StandIn):
    terra.add(*(f"page-{number:04}" for number in range(1_100)), reference="user_many")
    terra.add("page-0700", reference="user_few")

    async def act() -> None:
        async with terra.client() as client:
            listing = await client.subscriptions()
            assert len(listing.of("user_many")) == 1_099
            (result,) = listing.of("user_few")
            assert (result.user_id, result.provider, result.active) == ("page-0700", "GARMIN", True)
            assert listing.of("user_none") == ()

    asyncio.run(act())


def test_somebody_connects_on_the_page_and_disconnects(terra: StandIn, taken: Taken):
    async def begin() -> str:
        async with terra.client() as client:
            there = "http://127.0.0.1/done?a=b"
            session = await client.widget_session(
                "user_new", providers=("WHOOP", "OURA"), success_url=there
            )
            assert session.expires_in == 900
            return session.url

    url = asyncio.run(begin())
    page = httpx2.get(url).text
    assert "stand-in" in page
    assert 'value="WHOOP"' in page
    assert "GARMIN" not in page
    done = httpx2.post(url, data={"provider": "WHOOP"})
    assert done.status_code == 303
    assert done.headers["location"].startswith("http://127.0.0.1/done?a=b&user_id=")
    wait_until(lambda: taken.types() == ["auth"], "an auth")
    user = taken.bodies[0]["user"]
    assert (user["provider"], user["reference_id"]) == ("WHOOP", "user_new")
    removed = f"{terra.url}/v2/auth/deauthenticateUser"
    httpx2.delete(removed, params={"user_id": user["user_id"]}, headers=KEYS).raise_for_status()
    wait_until(lambda: taken.types() == ["auth", "deauth"], "a deauth")
    assert not httpx2.post(url, data={"cancel": "yes"}).headers.get("location")
    wait_until(lambda: taken.types()[-1] == "auth_cancelled", "an auth_cancelled")


def test_a_lab_report_is_read_and_its_file_is_wanted_in_one_field_alone(
    terra: StandIn, taken: Taken
):
    async def act(client: Terra) -> tuple[str, str]:
        async with client:
            return await client.upload_lab_report(
                "user_1", name="a.pdf", content_type="application/pdf", content=b"%PDF-1.7"
            )

    upload_id, answer = asyncio.run(act(terra.client()))
    assert upload_id in answer
    wait_until(lambda: taken.types() == ["lab_report.completed"], "a lab report")
    (body,) = taken.bodies
    assert (body["upload_id"], body["data"]["reference_id"]) == (upload_id, "user_1")
    with pytest.raises(TerraRefused, match="400 Bad Request: No Files Provided"):
        asyncio.run(act(terra.client(lab_field="file")))


# -- the workflows


def test_a_backfill_asks_for_ninety_days_of_each_type(terra: StandIn, taken: Taken):
    async def act() -> None:
        async with system(terra.client()) as test:
            status = await (await backfilled(test)).status()
            assert status.status == "complete"
            assert status.output == {"requests": 4, **counts(taken=4)}

    terra.add(USER)
    asyncio.run(act())
    all_days(taken, terra, 90)
    types = taken.types()
    assert types.count("large_request_processing") == types.count("large_request_sending") == 4
    assert set(types) >= set(DATA_TYPES)


def test_data_that_were_asked_for_twice_are_the_same(terra: StandIn, taken: Taken):
    async def act() -> None:
        async with terra.client() as client:
            await client.request_data("sleep", USER, date(2026, 11, 20), DAY)
            await client.request_data("sleep", USER, date(2026, 11, 20), DAY)

    terra.add(USER)
    asyncio.run(act())
    wait_until(lambda: len(taken.bodies) == 2, "two deliveries")
    assert taken.bodies[0] == taken.bodies[1]


def test_a_connection_that_terra_does_not_know_ends_a_backfill_in_peace(terra: StandIn):
    async def act() -> None:
        async with system(terra.client()) as test:
            params = {"terra_user_id": "none", "user_id": "user_1", "until": "2026-11-22"}
            instance = await test.create("terra-backfill", id="none-0", params=params)
            await test.run_until_idle()
            status = await instance.status()
            assert status.output == {"requests": 4, **counts(unknown_to_terra=4)}

    asyncio.run(act())


def test_a_backfill_goes_on_when_terra_does_however_long_it_fails(terra: StandIn, taken: Taken):
    async def act() -> None:
        async with system(terra.client()) as test:
            instance = await backfilled(test)
            steps = {step.name: step for step in (await instance.history()).steps}
            assert steps[f"daily {USER}"].status == "waiting"
            assert steps[f"sleep {USER}"].status == "completed"
            assert "answered 500" in steps[f"daily {USER}"].error.message
            for _ in range(6):
                await test.advance("1 hour")
            assert (await instance.status()).status == "complete"

    terra.add(USER)
    terra.fail("status", status=500, path="/v2/daily", times=9)
    asyncio.run(act())
    all_days(taken, terra, 90)


def test_a_key_that_terra_refuses_is_an_error_that_says_so_and_is_repaired(terra: StandIn):
    async def act() -> None:
        async with system(terra.client()) as test:
            instance = await backfilled(test)
            status = await instance.status()
            assert status.status == "errored"
            assert "refused all 4 requests, so check HEADWATER_TERRA_DEV_ID" in status.error.message
            assert "answered 401" in status.error.message
            await instance.retry()
            await test.run_until_idle()
            status = await instance.status()
            assert status.output == {"requests": 4, **counts(taken=4)}

    terra.add(USER)
    terra.fail("status", status=401, path="/v2/", times=4)
    asyncio.run(act())


def test_what_a_connection_does_not_have_or_permit_is_noted_and_is_no_error(terra: StandIn):
    async def act() -> None:
        async with system(terra.client()) as test:
            status = await (await backfilled(test)).status()
            assert status.output == {"requests": 4, **counts(taken=1, refused=1, unsupported=2)}

    terra.add(USER)
    terra.fail("status", status=400, path="/v2/sleep")
    terra.fail("status", status=404, path="/v2/daily")
    terra.fail("status", status=403, path="/v2/body")
    asyncio.run(act())


def test_a_request_that_fails_otherwise_is_an_error(terra: StandIn):
    async def act() -> None:
        async with system(terra.client()) as test:
            status = await (await backfilled(test)).status()
            assert status.status == "errored"
            assert "accepted 2 of 4 requests" in status.error.message
            assert "answered 402" in status.error.message

    terra.add(USER)
    terra.fail("status", status=402, path="/v2/sleep")
    terra.fail("status", status=403, path="/v2/body")
    asyncio.run(act())


def test_an_import_arrives_whole_though_the_stand_in_dies_in_the_midst_of_it(
    terra: StandIn, taken: Taken
):
    async def act() -> None:
        async with system(terra.client()) as test:
            params = {
                "user_id": "user_1",
                "days": 120,
                "until": DAY.isoformat(),
                "connections": [USER],
            }
            instance = await test.create("terra-import", id="import-1", params=params)
            await test.run_until_idle()
            wait_until(lambda: terra.process.poll() is not None, "the stand-in to die")
            assert terra.process.returncode == DIED
            terra.start()
            for _ in range(4):
                await test.advance("1 hour")
            assert (await instance.status()).output["taken"] == 4

    terra.add(USER)
    terra.fail("die", after=14)
    asyncio.run(act())
    all_days(taken, terra, 120)


def test_deliveries_that_are_refused_are_posted_until_they_are_taken(terra: StandIn, taken: Taken):
    async def act() -> None:
        async with system(terra.client()) as test:
            await backfilled(test)

    terra.add(USER)
    taken.refusals += [500, 503, 429] * 3
    asyncio.run(act())
    all_days(taken, terra, 90)
    days = taken.days_of("daily")
    assert len(days) == len(set(days)) == 91


def test_a_reconcile_asks_for_a_week_of_every_connection_and_one_failure_stops_none(
    terra: StandIn, taken: Taken
):
    people = [f"r-{number:03}" for number in range(30)]

    async def act() -> None:
        async with system(terra.client(), [*people, "r-unknown"]) as test:
            instance = await test.create("terra-reconcile", id="terra-reconcile-1", params={})
            await test.run_until_idle()
            history = await instance.history()
            assert (await instance.status()).status == "waiting"
            lines = [line.data for line in history.logs if line.level == "info"]
            noted = counts(taken=116, refused=1, unsupported=2, unknown_to_terra=4)
            assert lines[-1] == {"connections": 31, **noted}
            refused, failed = [line.data for line in history.logs if line.level == "warn"]
            assert (refused["connection"], refused["kind"]) == (hashed("r-011"), "body")
            assert "answered 403" in refused["why"]
            assert (failed["connection"], failed["kind"]) == (hashed("r-007"), "activity")
            assert not re.search(r"r-[0-9]{3}", repr(history)), "it names a connection"
            await test.advance("2 minutes")
            status = await instance.status()
            assert status.output == {"connections": 31, **noted, "taken": 117, "failed": 0}

    terra.add(*people)
    terra.fail("status", status=500, path="/v2/activity", query="user_id=r-007", times=4)
    terra.fail("status", status=403, path="/v2/body", query="user_id=r-011")
    terra.fail("status", status=404, path="/v2/sleep", query="user_id=r-013")
    terra.fail("status", status=400, path="/v2/body", query="user_id=r-013")
    asyncio.run(act())
    wait_until(lambda: terra.look()["waiting"] == 0, "everything to be posted")
    days = taken.days_of("daily")
    assert len(days) == 30 * 8
    assert set(days) == {f"2026-11-{day}" for day in range(15, 23)}


def test_a_reconcile_waits_for_a_terra_that_is_away(terra: StandIn):
    async def act() -> None:
        async with system(terra.client(), ["r-000"]) as test:
            instance = await test.create("terra-reconcile", id="terra-reconcile-2", params={})
            await test.run_until_idle()
            assert (await instance.status()).status == "waiting"
            terra.work()
            await test.advance("1 hour")
            assert (await instance.status()).output["taken"] == 4

    terra.add("r-000")
    terra.fail("status", status=503, times=1_000)
    asyncio.run(act())


def test_a_reconcile_stops_where_terra_refuses_a_whole_page_and_goes_on_when_it_is_retried(
    terra: StandIn,
):
    people = sorted((f"s-{number:03}" for number in range(30)), key=hashed)

    async def act() -> None:
        async with system(terra.client(), people) as test:
            instance = await test.create("terra-reconcile", id="terra-reconcile-3", params={})
            await test.run_until_idle()
            status = await instance.status()
            assert status.status == "errored"
            assert "Terra refused all 100 requests" in status.error.message
            await instance.retry()
            await test.run_until_idle()
            assert (await instance.status()).output["taken"] == 120

    terra.add(*people)
    terra.fail("status", status=401, times=100)
    asyncio.run(act())


def test_the_last_connection_may_refuse_everything(terra: StandIn):
    people = sorted((f"l-{number:03}" for number in range(26)), key=hashed)

    async def act() -> None:
        async with system(terra.client(), people) as test:
            instance = await test.create("terra-reconcile", id="terra-reconcile-4", params={})
            await test.run_until_idle()
            expected = counts(taken=100, refused=4)
            assert (await instance.status()).output == {"connections": 26, **expected, "failed": 0}

    terra.add(*people)
    terra.fail("status", status=403, query=f"user_id={people[-1]}", times=4)
    asyncio.run(act())


def test_a_reconcile_of_one_user_opens_and_closes_connections_and_asks_for_a_week(terra: StandIn):
    async def act() -> None:
        async with terra.client() as client:
            outside = Outside(client, ["u-both", "u-ours"])
            workflows = TerraWorkflows(outside, lambda: 7).workflows
            async with WorkflowTest(workflows) as test:
                params = {"user_id": "user_1"}
                instance = await test.create("terra-reconcile-user", id="r-1", params=params)
                await test.run_until_idle()
                output = (await instance.status()).output
            opened = [fact for fact in outside.told if isinstance(fact, ConnectionListed)]
            (closed,) = [fact for fact in outside.told if isinstance(fact, ConnectionClosed)]
            assert "u-theirs" in {fact.terra_user_id for fact in opened}
            assert closed.terra_user_id == "u-ours"
            active = len(opened) + 1
            assert output == {
                "connections": active,
                "opened": len(opened),
                "closed": 1,
                "unreadable": 0,
                "requests": 4 * active,
                **counts(taken=4 * active),
            }

    terra.add("u-both", "u-theirs", reference="user_1")
    asyncio.run(act())


def test_connections_end_at_terra_before_they_end_here(terra: StandIn, taken: Taken):
    async def act() -> None:
        async with terra.client() as client:
            outside = Outside(client)
            async with WorkflowTest(TerraWorkflows(outside, lambda: 7).workflows) as test:
                params = {"user_id": "user_1", "connections": ["d-1", "d-none"]}
                instance = await test.create("terra-disconnect", id="d-1", params=params)
                await test.run_until_idle()
                assert (await instance.status()).status == "waiting"
                assert [fact.subject for fact in outside.told] == ["d-none"]
                for _ in range(4):
                    await test.advance("1 hour")
                assert (await instance.status()).output == {"disconnected": 2}
            ended = {(fact.type, fact.subject, fact.user_id, fact.at_ms) for fact in outside.told}
            assert ended == {
                ("connection_gone", name, "user_1", 7) for name in params["connections"]
            }

    terra.add("d-1")
    terra.fail("status", status=500, path="/v2/auth", query="user_id=d-1", times=9)
    asyncio.run(act())
    wait_until(lambda: taken.types() == ["deauth"], "a deauth")


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (None, "submitted"),
        ({"kind": "status", "status": 500}, "submitted"),
        ({"kind": "status", "status": 503, "times": 9}, "failed:503"),
        ({"kind": "status", "status": 402}, "failed:402"),
    ],
)
def test_a_lab_report_is_submitted_or_its_failure_is_told(
    terra: StandIn, tmp_path: Path, fault: dict[str, object] | None, status: str
):
    key = "lab-uploads/user_1/up-1.pdf"
    params = {
        "upload_id": "up-1",
        "user_id": "user_1",
        "storage_key": key,
        "original_name": "my report.pdf",
        "content_type": "application/pdf",
    }

    async def act() -> None:
        async with terra.client() as client:
            outside = Outside(client, folder=tmp_path)
            await (await outside.blobs()).write(key, b"%PDF-1.7", "application/pdf")
            async with WorkflowTest(TerraWorkflows(outside, lambda: 7).workflows) as test:
                instance = await test.create("terra-lab", id="up-1", params=params)
                await test.run_until_idle()
                result = (await instance.history()).steps[0].result
            (reported,) = outside.told
            assert isinstance(reported, LabSubmitted)
            assert (reported.upload_id, reported.user_id, reported.at_ms) == ("up-1", "user_1", 7)
            assert reported.terra_status == result["terra_status"] == status
            assert reported.terra_upload_id == result["terra_upload_id"]
            assert (reported.terra_upload_id is not None) is (status == "submitted")

    if fault is not None:
        terra.fail(path="/v2/lab-reports", **fault)
    asyncio.run(act())


@pytest.mark.parametrize(("status", "told"), [("submitted", 2), ("parsed", 1), (None, 1)])
def test_a_report_that_does_not_come_within_a_day_is_told(
    terra: StandIn, tmp_path: Path, status: str | None, told: int
):
    key = "lab-uploads/user_1/up-1.pdf"
    times = itertools.count(7)

    async def act() -> None:
        async with terra.client() as client:
            outside = Outside(client, folder=tmp_path)
            outside.status = status
            await (await outside.blobs()).write(key, b"%PDF-1.7", "application/pdf")
            workflows = TerraWorkflows(outside, lambda: next(times)).workflows
            async with WorkflowTest(workflows) as test:
                params = {"upload_id": "up-1", "user_id": "user_1", "storage_key": key}
                more = {"original_name": "a.pdf", "content_type": "application/pdf"}
                instance = await test.create("terra-lab", id="up-1", params=params | more)
                await test.run_until_idle()
                await test.advance("23 hours")
                assert len(outside.told) == 1
                await test.advance("1 hour")
                output = (await instance.status()).output
            assert len(outside.told) == told
            submitted, last = outside.told[0], outside.told[-1]
            assert isinstance(submitted, LabSubmitted)
            assert isinstance(last, LabSubmitted)
            assert output["terra_status"] == last.terra_status
            if told == 2:
                assert last.terra_status == "failed:no_report"
                assert last.terra_upload_id == submitted.terra_upload_id
                assert last.at_ms > submitted.at_ms

    asyncio.run(act())

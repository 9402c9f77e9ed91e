"""A projection is made again with another normalizer, compared, switched to, and back."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx2
import psycopg
import pytest

from headwater.schemas.tables import DAILY_SUMMARY
from headwater.schemas.topics import WIPES
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import Offsets
from tests.e2e.deliveries import mixed
from tests.e2e.system import ADMIN, PARTITIONS, System, opened, signed
from tests.waiting import ANSWERED_WITHIN_S

_MODULE = """
import msgspec
from headwater.processors.columns import RowUpdate
from headwater.processors.providers.envelope import Routing
from headwater.processors.providers.provider import DeliveryType, Provider
from headwater.processors.providers.results import Normalized, Skipped
from headwater.processors.signature_schemes import SCHEMES
from headwater.schemas.tables import DAILY_SUMMARY

VERSION = {version}

class Day(msgspec.Struct):
    user: str
    day: str
    steps: int | None = None
    strain: float | None = None

decode = msgspec.json.Decoder(Day).decode

def read(body, headers):
    return Routing(type="day", subject="", reference=decode(body).user)

def normalize(event, user, day):
    if day.steps == (7 if VERSION == 1 else 13):
        return Skipped("unlucky")
    steps = None if day.steps is None else day.steps * VERSION
    values = {{"steps": steps, "strain": day.strain}}
    key = (user, "pedometer", day.day)
    return Normalized((RowUpdate(DAILY_SUMMARY, key, values, event.stamp()),))

STEPS = Provider(
    name="steps", scheme=SCHEMES["terra"], read=read,
    types={{"day": DeliveryType(
        decode=decode, normalize=normalize, tables=(DAILY_SUMMARY,), version=VERSION,
    )}},
)
"""
DAYS = 20


class Package:
    """A provider that is installed beside Headwater, with a normalizer of two versions."""

    def __init__(self, folder: Path) -> None:
        self._module = folder / "headwater_steps.py"
        metadata = folder / "headwater_steps-1.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: headwater-steps\nVersion: 1\n"
        )
        points = "[headwater.providers]\nsteps = headwater_steps:STEPS\n"
        (metadata / "entry_points.txt").write_text(points)
        self.write(1)

    def write(self, version: int) -> None:
        self._module.write_text(_MODULE.format(version=version))
        # Of two that are of one size and age, Python would take the bytecode of the first.
        os.utime(self._module, (version, version))


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path / "site")


@pytest.fixture
def system(tmp_path: Path, fresh_database: str, package: Package) -> Iterator[System]:
    del package
    more = {
        "HEADWATER_STEPS_SECRETS": "dev-terra-secret",
        "PYTHONPATH": str(tmp_path / "site"),
    }
    with opened(System(tmp_path, fresh_database, HEADWATER_PARK_FOR_S="600", **more)) as system:
        yield system


def post(system: System, **day: object) -> None:
    body = json.dumps(day).encode()
    url = f"{system.url()}/webhooks/steps"
    deadline = time.monotonic() + 60
    while not httpx2.post(
        url, content=body, headers=signed(body), timeout=ANSWERED_WITHIN_S
    ).is_success:
        assert time.monotonic() < deadline


def ask(system: System, path: str, body: object = None) -> dict[str, Any]:
    method = "GET" if body is None else "POST"
    answer = httpx2.request(
        method, system.url() + path, json=body, headers=ADMIN, timeout=ANSWERED_WITHIN_S
    )
    assert answer.is_success, answer.text
    return dict(answer.json())


def compared(system: System, *, killed: bool = False, verify: bool = False) -> dict[str, Any]:
    """A rebuild that is compared, or a verification."""
    begun = ask(system, "/admin/rebuilds", {"projection": "daily_summary", "verify": verify})
    path = f"/admin/rebuilds/{begun['id']}"
    assert begun["state"] == "building"
    if killed:
        system.wait(lambda: ask(system, path)["progress"]["total"] > 0, "the rebuild to begin")
        system.kill("project")
        system.start("project")
    system.wait(lambda: ask(system, path)["state"] != "building", "the rebuild to be compared")
    result = ask(system, path)
    assert (result["state"], result["error"]) == ("verified" if verify else "compared", "")
    assert result["progress"]["applied"] == result["progress"]["total"] > 0
    return result


def rows(system: System) -> dict[str, tuple[int | None, float | None]]:
    with psycopg.connect(system.dsn) as connection:
        query = (
            "select datetime::text, steps, strain from daily_summary where user_id = 'user_steps'"
        )
        return {day: (steps, strain) for day, steps, strain in connection.execute(query)}


def users(system: System) -> set[str]:
    with psycopg.connect(system.dsn) as connection:
        query = "select user_id from daily_summary where source = 'pedometer'"
        return {user for (user,) in connection.execute(query)}


def day(number: int) -> str:
    return f"2026-06-{number + 1:02}"


def settled(system: System, expected: dict[str, tuple[int | None, float | None]]) -> None:
    def differing() -> dict[str, object]:
        actual = rows(system)
        days = sorted({*actual, *expected})
        return {
            d: (actual.get(d), expected.get(d)) for d in days if actual.get(d) != expected.get(d)
        }

    try:
        system.wait(lambda: not differing(), f"rows of {expected}")
    except AssertionError as error:
        raise AssertionError(f"expected the rows of {expected}, got {differing()}") from error


@contextmanager
def strains_posted(
    system: System, days: Sequence[int] = range(DAYS - 1)
) -> Iterator[dict[str, float]]:
    """Posts another column of rows, again and again, while something else goes on."""
    over, posted = Event(), dict[str, float]()

    def send() -> None:
        draw = random.Random(5)
        while not over.is_set():
            name, strain = day(draw.choice(days)), draw.randrange(1_000) / 10
            posted[name] = strain
            post(system, user="user_steps", day=name, strain=strain, at=time.time_ns())
            # Signed by whole seconds: of two in one, the greater id would win. Also of the last one
            # of these and the first of those that follow.
            time.sleep(1.05)

    sending = Thread(target=send)
    sending.start()
    try:
        yield posted
    finally:
        over.set()
        sending.join()


def expected(version: int, steps: dict[str, int], strains: dict[str, float]) -> dict[str, Any]:
    """The rows that a version of the normalizer makes."""
    unlucky = 7 if version == 1 else 13
    made = {
        name: (None if count == unlucky else count * version, strains.get(name))
        for name, count in steps.items()
    }
    return {name: item for name, item in made.items() if item != (None, None)}


def process_of(rebuild_id: str) -> int:
    """The process that carries a rebuild out."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and rebuild_id.encode() in (folder / "cmdline").read_bytes():
                return int(folder.name)
    raise LookupError(rebuild_id)


#: A row that a switch writes, and how it waits for that.
HELD_ROW = (
    "select from daily_summary where source = 'pedometer' and datetime = %s for update",
    day(DAYS - 1),
    "%daily_summary%",
)
#: The offsets that pause the projector during a comparison.
HELD_OFFSETS = (
    "select from projection_offsets where topic = %s for update",
    DAILY_SUMMARY.topic,
    "%topic = any(%",
)


@contextmanager
def held(system: System, query: str, parameter: str, waiting: str) -> Iterator[Callable[[], None]]:
    """Holds rows; yields what waits until a rebuild waits for them, with statements as named."""
    waits = "select from pg_stat_activity where wait_event_type = 'Lock' and query like %s"
    with (
        psycopg.connect(system.dsn) as holder,
        psycopg.connect(system.dsn, autocommit=True) as look,
    ):
        holder.execute(query.encode(), [parameter])
        yield lambda: system.wait(
            lambda: look.execute(waits, [waiting]).rowcount > 0, "a rebuild to wait"
        )


def moved_in_spite_of_a_kill(system: System, rebuild_id: str, move: str, state: str) -> None:
    """Kills who switches amid the transaction, which waits for a row that somebody else holds."""
    path, before = f"/admin/rebuilds/{rebuild_id}", steps_of(system)
    asking = Thread(target=ask, args=(system, f"{path}/{move}", {}))
    with held(system, *HELD_ROW) as wait:
        asking.start()
        wait()
        assert steps_of(system) == before, "readers see none of it"
        os.kill(process_of(rebuild_id), signal.SIGKILL)
    asking.join()
    system.wait(lambda: ask(system, path)["state"] == state, "the switch to go on")


def steps_of(system: System) -> dict[str, int]:
    return {name: steps for name, (steps, _) in rows(system).items() if steps is not None}


def released(system: System, package: Package, version: int) -> None:
    """Installs another version of the normalizer, and starts who uses it."""
    package.write(version)
    for part in ("worker", "project"):
        system.stop(part)
        system.start(part)


#: What hands have done to a table: a row changed, one lost, one invented.
SPOILING = (
    ("update daily_summary set steps = 999999 where source = 'pedometer' and datetime = %s", 0),
    ("delete from daily_summary where source = 'pedometer' and datetime = %s", DAYS - 1),
    (
        "insert into daily_summary (user_id, source, datetime, column_sources, updated_at) "
        "values ('user_steps', 'pedometer', %s, '{}', now())",
        DAYS,
    ),
)
SAME = {"added": 0, "removed": 0, "changed": 0, "examples": []}


def spoil(system: System) -> None:
    with psycopg.connect(system.dsn) as connection:
        for query, number in SPOILING:
            connection.execute(query.encode(), [day(number)])


def shown(difference: dict[str, Any]) -> None:
    assert [difference[kind] for kind in ("added", "removed", "changed")] == [1, 1, 1]
    columns = {example["kind"]: example["columns"] for example in difference["examples"]}
    assert columns["changed"] == {"steps": [999999, 100]}
    assert columns["added"]["steps"] == [None, 100 + DAYS - 1]


def verified(system: System) -> None:
    """Differences are found, by hand as well; nothing is changed, and nothing can be switched."""
    before = rows(system)
    result = compared(system, verify=True)
    assert result["version"] is None
    shown(result["difference"])
    url = f"{system.url()}/admin/rebuilds/{result['id']}/switch"
    refused = httpx2.post(url, json={}, headers=ADMIN, timeout=ANSWERED_WITHIN_S)
    assert (refused.status_code, refused.json()["code"]) == (409, "nothing_to_switch")
    assert rows(system) == before


def compared_while_a_user_is_wiped(system: System) -> dict[str, Any]:
    """A row that Postgres has lost is not restored when its user is wiped during the rebuild."""
    with psycopg.connect(system.dsn) as connection:
        connection.execute("delete from daily_summary where user_id = 'user_gone'")
    with held(system, *HELD_OFFSETS) as wait:
        begun = ask(system, "/admin/rebuilds", {"projection": "daily_summary"})
        wait()
        ends = ends_of_wipes(system)
        wiping = Thread(target=system.wipe, args=("user_gone",))
        wiping.start()
        system.wait(lambda: ends_of_wipes(system) != ends, "the wipe")
    wiping.join()
    path = f"/admin/rebuilds/{begun['id']}"
    system.wait(lambda: ask(system, path)["state"] == "compared", "the rebuild to be compared")
    return ask(system, path)


def ends_of_wipes(system: System) -> list[int]:
    async def read() -> list[int]:
        offsets = Offsets(Cluster(system.bootstrap), "test")
        try:
            return [(await offsets.ends([WIPES], number))[WIPES] for number in range(PARTITIONS)]
        finally:
            await offsets.stop()

    return asyncio.run(read())


def repaired(system: System, steps: dict[str, int]) -> dict[str, float]:
    """Postgres is compared with what is right, and repaired while deliveries come."""
    post(system, user="user_gone", day=day(1), strain=1.0)
    settled(system, expected(1, steps, {}))
    system.wait(lambda: "user_gone" in users(system), "its row")
    spoil(system)
    verified(system)
    result = compared_while_a_user_is_wiped(system)
    shown(result["difference"])
    assert "user_gone" not in json.dumps(result)
    asking = Thread(target=ask, args=(system, f"/admin/rebuilds/{result['id']}/switch", {}))
    with held(system, *HELD_OFFSETS) as wait:
        asking.start()
        wait()  # All rows are in the other table, and are yet to be compared.
        with strains_posted(system, range(7, DAYS - 1)) as strains:
            system.wait(lambda: len(strains) > 1, "deliveries to come")
        os.kill(process_of(result["id"]), signal.SIGKILL)
    asking.join()
    path = f"/admin/rebuilds/{result['id']}"
    system.wait(lambda: ask(system, path)["state"] == "switched", "the switch to go on")
    settled(system, expected(1, steps, strains))
    assert users(system) == {"user_steps"}
    assert compared(system, verify=True)["difference"] == SAME
    return strains


@pytest.mark.timeout(900)
def test_a_changed_normalizer_is_compared_switched_to_and_back_while_deliveries_come(
    system: System, package: Package
) -> None:
    system.deliver(mixed(4, 80))
    steps = {day(n): {5: 7, 6: 13}.get(n, 100 + n) for n in range(DAYS)}
    for name, count in steps.items():
        post(system, user="user_steps", day=name, steps=count)
    strains_before = repaired(system, steps)
    before = expected(1, steps, strains_before)

    released(system, package, 2)
    result = compared(system, killed=True)
    assert rows(system) == before
    difference = result["difference"]
    assert [difference[kind] for kind in ("added", "removed", "changed")] == [1, 1, DAYS - 2]
    (added,) = [example for example in difference["examples"] if example["kind"] == "added"]
    assert added["key"] == {
        "user_id": "user_steps", "source": "pedometer", "datetime": day(5),
    }  # fmt: skip
    assert added["columns"] == {"steps": [None, 14]}

    path = f"/admin/rebuilds/{result['id']}"
    refused = httpx2.post(
        f"{system.url()}{path}/back", json={}, headers=ADMIN, timeout=ANSWERED_WITHIN_S
    )
    assert (refused.status_code, refused.json()["code"]) == (409, "not_compared")
    with strains_posted(system) as strains:
        system.wait(lambda: len(strains) > 1, "deliveries to come")
        moved_in_spite_of_a_kill(system, result["id"], "switch", "switched")
        system.wait(lambda: len(strains) > 3, "deliveries to come")
    strains = strains_before | strains
    settled(system, expected(2, steps, strains))
    with strains_posted(system) as more:
        moved_in_spite_of_a_kill(system, result["id"], "back", "switched_back")
        system.wait(lambda: len(more) > 1, "deliveries to come")
    settled(system, expected(1, steps, strains | more))
    # What owners and Postgres have is the same: nothing is left to be compared but the code.
    again = compared(system)["difference"]
    assert again["changed"] >= DAYS - 2

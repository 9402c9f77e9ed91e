"""A projection is made again with another normalizer, compared, switched to, and back."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import psycopg
import pytest

from tests.e2e.deliveries import mixed
from tests.e2e.system import ADMIN, System, opened, signed
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


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path / "site")


@pytest.fixture
def system(tmp_path: Path, fresh_database: str, package: Package) -> Iterator[System]:
    del package
    more = {
        "HEADWATER_STEPS_SECRETS": "dev-terra-secret",
        "PYTHONPATH": str(tmp_path / "site"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with opened(System(tmp_path, fresh_database, HEADWATER_PARK_FOR_S="600", **more)) as system:
        yield system


def post(system: System, **day: object) -> None:
    body = json.dumps(day).encode()
    url = f"{system.url()}/webhooks/steps"
    deadline = time.monotonic() + 60
    while not httpx.post(
        url, content=body, headers=signed(body), timeout=ANSWERED_WITHIN_S
    ).is_success:
        assert time.monotonic() < deadline


def ask(system: System, path: str, body: object = None) -> dict[str, Any]:
    method = "GET" if body is None else "POST"
    answer = httpx.request(
        method, system.url() + path, json=body, headers=ADMIN, timeout=ANSWERED_WITHIN_S
    )
    assert answer.is_success, answer.text
    return dict(answer.json())


def rebuilt(system: System, *, killed: bool = False) -> dict[str, Any]:
    """A rebuild of daily_summary that is compared."""
    begun = ask(system, "/admin/rebuilds", {"projection": "daily_summary"})
    path = f"/admin/rebuilds/{begun['id']}"
    assert begun["state"] == "building"
    if killed:
        system.wait(lambda: ask(system, path)["progress"]["total"] > 0, "the rebuild to begin")
        system.kill("project")
        system.start("project")
    system.wait(lambda: ask(system, path)["state"] != "building", "the rebuild to be compared")
    result = ask(system, path)
    assert (result["state"], result["error"]) == ("compared", "")
    assert result["progress"]["applied"] == result["progress"]["total"] > 0
    return result


def rows(system: System) -> dict[str, tuple[int | None, float | None]]:
    with psycopg.connect(system.dsn) as connection:
        query = "select datetime::text, steps, strain from daily_summary where source = 'pedometer'"
        return {day: (steps, strain) for day, steps, strain in connection.execute(query)}


def day(number: int) -> str:
    return f"2026-06-{number + 1:02}"


def settled(system: System, expected: dict[str, tuple[int | None, float | None]]) -> None:
    system.wait(lambda: rows(system) == expected, f"rows of {expected}")


@contextmanager
def strains_posted(system: System) -> Iterator[dict[str, float]]:
    """Posts another column of rows, again and again, while something else goes on."""
    over, posted = Event(), dict[str, float]()

    def send() -> None:
        draw = random.Random(5)
        while not over.is_set():
            name, strain = day(draw.randrange(DAYS - 1)), draw.randrange(1_000) / 10
            posted[name] = strain
            post(system, user="user_steps", day=name, strain=strain, at=time.time_ns())
            # Signed by whole seconds: of two in one, the greater id would win.
            over.wait(1.05)

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


def moved_in_spite_of_a_kill(system: System, rebuild_id: str, move: str, state: str) -> None:
    """Kills who switches amid the transaction, which waits for a row that somebody else holds."""
    path, before = f"/admin/rebuilds/{rebuild_id}", steps_of(system)
    waits = "select from pg_stat_activity where wait_event_type = 'Lock' and query like %s"
    asking = Thread(target=ask, args=(system, f"{path}/{move}", {}))
    with (
        psycopg.connect(system.dsn) as holder,
        psycopg.connect(system.dsn, autocommit=True) as look,
    ):
        query = "select from daily_summary where source = 'pedometer' and datetime = %s for update"
        holder.execute(query, [day(DAYS - 1)])
        asking.start()
        system.wait(lambda: look.execute(waits, ["%daily_summary%"]).rowcount > 0, "a switch")
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


def test_a_changed_normalizer_is_compared_switched_to_and_back_while_deliveries_come(
    system: System, package: Package
) -> None:
    system.deliver(mixed(4, 80))
    steps = {day(n): {5: 7, 6: 13}.get(n, 100 + n) for n in range(DAYS)}
    for name, count in steps.items():
        post(system, user="user_steps", day=name, steps=count)
    before = expected(1, steps, {})
    settled(system, before)

    same = rebuilt(system)
    assert same["version"] == 2
    assert same["difference"] == {"added": 0, "removed": 0, "changed": 0, "examples": []}

    released(system, package, 2)
    result = rebuilt(system, killed=True)
    assert rows(system) == before
    difference = result["difference"]
    assert [difference[kind] for kind in ("added", "removed", "changed")] == [1, 1, DAYS - 2]
    (added,) = [example for example in difference["examples"] if example["kind"] == "added"]
    assert added["key"] == {
        "user_id": "user_steps", "source": "pedometer", "datetime": day(5),
    }  # fmt: skip
    assert added["columns"] == {"steps": [None, 14]}

    path = f"/admin/rebuilds/{result['id']}"
    refused = httpx.post(
        f"{system.url()}{path}/back", json={}, headers=ADMIN, timeout=ANSWERED_WITHIN_S
    )
    assert (refused.status_code, refused.json()["code"]) == (409, "not_compared")
    with strains_posted(system) as strains:
        system.wait(lambda: len(strains) > 1, "deliveries to come")
        moved_in_spite_of_a_kill(system, result["id"], "switch", "switched")
        system.wait(lambda: len(strains) > 3, "deliveries to come")
    settled(system, expected(2, steps, strains))
    with strains_posted(system) as more:
        moved_in_spite_of_a_kill(system, result["id"], "back", "switched_back")
        system.wait(lambda: len(more) > 1, "deliveries to come")
    settled(system, expected(1, steps, strains | more))
    # What owners and Postgres have is the same: nothing is left to be compared but the code.
    again = rebuilt(system)["difference"]
    assert again["changed"] >= DAYS - 2

"""Two releases side by side, on a real broker and a real Postgres: an upgrade stops nothing."""

import asyncio
import base64
import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from uuid import uuid4

import httpx2
import psycopg
import pytest
from psycopg import conninfo, sql
from typing_extensions import override

from headwater.schemas.avro_schemas import IDS
from headwater.schemas.history import instance_key
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Outgoing, partition_of
from tests.e2e.deliveries import daily
from tests.e2e.system import PARTITIONS, System, free_port, signed
from tests.upgrade.releases import environment, make_releases, run
from tests.waiting import ANSWERED_WITHIN_S

KEY: Final = {"x-api-key": "dev-workflow-key"}
APP: Final = "tests.upgrade.upgrading_app"
COMMANDS: Final = {
    "gateway": ["serve"],
    "worker": ["worker"],
    "flows": ["worker", "--app", APP],
    "project": ["project"],
}
#: Topics whose records have a newer form in the next release.
CHANGED: Final = (
    "webhooks",
    "webhook-outcomes",
    "workflow-commands",
    "workflow-history",
    "daily-summary",
)
LATEST: Final = max(IDS.values())


class Mixed(System):
    """A system whose parts are of two releases: `old-gateway`, `new-worker`."""

    def __init__(self, directory: Path, dsn: str, trees: dict[str, Path]) -> None:
        super().__init__(directory, dsn)
        self.trees = trees
        self.days = iter((user, day) for user in range(10_000) for day in range(1, 29))
        self.steps: dict[tuple[str, str], int] = {}
        self.instances: list[str] = []
        #: Partitions in which workflows are begun.
        self.open_to = range(PARTITIONS)
        #: What `complete` found to be otherwise.
        self.missing: dict[str, object] = {}

    @override
    def start(self, name: str, *arguments: str) -> None:
        release, _, part = name.partition("-")
        env = environment(self.trees[release]) | {
            "HEADWATER_KAFKA": self.bootstrap,
            "HEADWATER_POSTGRES": self.dsn,
            "HEADWATER_PORT": str(self.ports.setdefault(name, free_port())),
            "HEADWATER_DATA_DIR": str(self.directory / "data"),
        }
        with (self.directory / f"{name}.log").open("ab") as log:
            argv = [sys.executable, "-m", "headwater", *COMMANDS[part]]
            self.parts[name] = subprocess.Popen(
                argv, env=env, stdout=log, stderr=log, cwd=self.trees[release]
            )
        if part == "gateway":
            self.wait(lambda: self._ready(name), f"{name} to be ready")

    def replace(self, part: str, old: str = "old", new: str = "new") -> None:
        """Starts a part of a release beside that of another, and then stops this one."""
        self.start(f"{new}-{part}")
        self.traffic()
        self.stop(f"{old}-{part}")
        self.traffic()

    def gateway(self) -> str:
        return next(name for name in self.parts if name.endswith("gateway"))

    def traffic(self, *through: str) -> None:
        """Deliveries and workflows, through these gateways, or else each that runs."""
        gateways = through or [name for name in self.parts if name.endswith("gateway")]
        bodies = []
        for _ in range(12):
            user, day = next(self.days)
            self.steps[f"user_{user}", f"2026-06-{day:02}"] = steps = 1_000 + 31 * user + day
            bodies.append(daily(user, day, steps, known=True))
        self.deliver(bodies, gateways)
        for name in gateways:
            for _ in range(3):
                self.create(name, self.fresh())

    def fresh(self, prefix: str = "") -> str:
        """The id of an instance."""
        while True:
            instance = prefix + uuid4().hex
            if partition_of(instance_key("paced", instance).encode(), PARTITIONS) in self.open_to:
                return instance

    def create(self, gateway: str, instance: str) -> None:
        """Begins an instance, trying again while a partition has no owner."""
        self.instances.append(instance)
        url = f"{self.url(gateway)}/api/workflows/workflows/paced/instances"
        body = {"id": instance, "params": None}

        def taken() -> bool:
            answer = httpx2.post(
                url, json=body, headers=KEY | {"prefer": "respond-async"}, timeout=ANSWERED_WITHIN_S
            )
            assert answer.status_code in {200, 202, 409, 503, 504}, answer.text
            return answer.status_code in {200, 202, 409}

        self.wait(taken, f"{instance} to be created")

    def complete(self) -> bool:
        """Whether every row and every workflow is what it should be."""
        with psycopg.connect(self.dsn) as connection:
            rows = connection.execute("select user_id, datetime::text, steps from daily_summary")
            result = {(user, day): steps for user, day, steps in rows}
            ended = dict(
                connection.execute("select instance_id, status from workflow_instance").fetchall()
            )
        self.missing = {
            "rows": dict(result.items() ^ self.steps.items()),
            "instances": {i: ended.get(i) for i in self.instances if ended.get(i) != "complete"},
        }
        return not any(self.missing.values())

    def schemas(self) -> dict[str, Counter[int]]:
        """How many records of each schema the topics that change hold."""

        async def count(topic: str) -> Counter[int]:
            result: Counter[int] = Counter()
            for partition in range(PARTITIONS):
                async for records in read_partition(Cluster(self.bootstrap), [topic], partition):
                    result.update(int.from_bytes(record.value[1:5], "big") for record in records)
            return result

        return {topic: asyncio.run(count(topic)) for topic in CHANGED}

    def newer(self) -> dict[str, int]:
        """How many records of each topic only the next release reads."""
        return {
            topic: sum(many for number, many in counted.items() if number > LATEST)
            for topic, counted in self.schemas().items()
        }

    def lost(self) -> tuple[int, int]:
        """Dead letters, and records that the projector could not apply."""
        with psycopg.connect(self.dsn) as connection:
            counts = connection.execute(
                "select (select count(*) from dead_letters),"
                " (select count(*) from projection_errors)"
            ).fetchone()
        assert counts is not None
        return counts

    def post_from_eu(self, gateway: str, user: int, day: int) -> int:
        """Posts a delivery that has something to say in the new field."""
        body = daily(user, day, 7, known=True)
        headers = signed(body) | {"x-request-id": f"eu-{uuid4().hex}"}
        url = f"{self.url(gateway)}/webhooks/terra"
        answer = httpx2.post(url, content=body, headers=headers, timeout=ANSWERED_WITHIN_S)
        if answer.status_code == 503:
            assert answer.json()["code"] == "not_yet_readable"
            assert "retry-after" in answer.headers
        else:
            self.steps[f"user_{user}", f"2026-06-{day:02}"] = 7
        return answer.status_code


@pytest.fixture(scope="module")
def trees(scratch: Path) -> dict[str, Path]:
    old, new = make_releases(scratch / "releases")
    return {"old": old, "new": new}


@pytest.fixture
def system(scratch: Path, postgres: str, trees: dict[str, Path]) -> Iterator[Mixed]:
    name = f"upgrade_{uuid4().hex[:8]}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    dsn = conninfo.make_conninfo(postgres, dbname=name)
    (scratch / name).mkdir()
    system = Mixed(scratch / name, dsn, trees)
    try:
        system.open()
        with psycopg.connect(dsn) as connection:
            # What the next release's migration would do, which comes before its first part.
            connection.execute("alter table daily_summary add column mood text")
        for part in COMMANDS:
            system.start(f"old-{part}")
        system.traffic()
        yield system
    finally:
        system.close()


@contextlib.contextmanager
def at_work(system: Mixed, gateway: str) -> Iterator[None]:
    """Send deliveries and begin workflows through a gateway, from another thread."""
    over = threading.Event()

    def send() -> None:
        while not over.is_set():
            system.traffic(gateway)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            yield
        finally:
            over.set()
            sending.result()


@pytest.mark.soak
def test_parts_change_places_under_load_in_any_order_and_lose_nothing(system: Mixed, seed: int):
    draw = random.Random(seed)
    system.start("new-gateway")
    with at_work(system, "new-gateway"):
        system.stop("old-gateway")
        for part in draw.sample(["worker", "flows", "project"], 3):
            system.start(f"new-{part}")
            time.sleep(draw.uniform(0, 5))
            leaves = draw.choice([system.stop, system.kill])
            leaves(f"old-{part}")
            time.sleep(draw.uniform(0, 5))
    system.wait(system.complete, "everything to be done")
    assert system.lost() == (0, 0)


def test_parts_join_one_by_one_gateway_first_and_one_goes_back(system: Mixed):
    system.replace("gateway")
    assert system.post_from_eu("new-gateway", 99, 1) == 503
    system.replace("worker")
    system.replace("worker", "new", "old")
    system.replace("worker")
    system.replace("flows")
    system.wait(system.complete, "everything to be done in a mixed system")
    assert system.newer() == dict.fromkeys(CHANGED, 0)
    hold_up(system)
    system.replace("project")
    system.wait(
        lambda: system.post_from_eu("new-gateway", 99, 1) == 200, "the new form to be taken"
    )
    system.traffic()
    system.wait(system.complete, "everything to be done")
    assert system.lost() == (0, 0)
    assert all(system.newer().values()), system.schemas()


def hold_up(system: Mixed) -> None:
    """Has the new workers decide what only the next release can read, while an old part is left."""
    system.steps["user_96", "2026-06-03"] = 5
    system.deliver([daily(96, 3, 5, known=True)], ["new-gateway"])
    system.open_to = range(1)
    instance = system.fresh("eu-")
    system.instances.append(instance)
    url = f"{system.url('new-gateway')}/api/workflows/workflows/paced/instances"
    with contextlib.suppress(httpx2.TimeoutException):
        httpx2.post(url, json={"id": instance, "params": None}, headers=KEY, timeout=1)
    system.open_to = range(1, PARTITIONS)
    for name, schema in (("new-worker", "outcome_recorded"), ("new-flows", "history_appended")):
        words = f"expected all members to read version 2 of {schema}, found that projector"
        system.wait(lambda: system.says(name, words), f"{name} to wait for all to read {schema}")  # noqa: B023
    assert not system.complete()
    assert system.newer() == dict.fromkeys(CHANGED, 0)


def test_what_an_older_part_cannot_read_waits_for_its_successor(system: Mixed):
    system.open_to = range(1)
    instance = system.fresh()
    # Whose history it cannot read it does not take over, and has no commands to read then.
    system.wait(lambda: system.says("old-flows", "acquired partition 0"), "old-flows to begin")
    # What it remembers it reads when it begins; later the delivery would be the first to wait.
    system.stop("old-worker")
    asyncio.run(put_newer(system, instance))
    system.start("old-worker")
    for name, topic in (
        # Of all that it remembers: it waits before it takes a delivery of that partition.
        ("old-worker", "daily-summary"),
        ("old-flows", "workflow-commands"),
        ("old-project", "daily-summary"),
        ("old-project", "workflow-history"),
    ):
        system.wait(lambda: system.says(name, f"{topic}/0@"), f"{name} to say that {topic} waits")  # noqa: B023
    system.open_to = range(1, PARTITIONS)
    system.traffic()
    with psycopg.connect(system.dsn) as connection:
        waiting = connection.execute("select 1 from daily_summary where user_id = 'user_98'")
        assert waiting.fetchall() == []
    assert system.lost() == (0, 0)
    for part in ("flows", "worker", "project", "gateway"):
        system.replace(part)
    system.instances.append(instance)
    system.steps["user_98", "2026-06-03"] = 5
    system.steps["user_97", "2026-06-03"] = 6
    system.wait(system.complete, "everything to be done")
    assert system.lost() == (0, 0)


#: Run with the next release: records with something to say in what is new.
NEWER: Final = """
import base64, json, sys, time
from headwater.schemas.codec import encode, encode_row
from headwater.schemas.history import CommandSent, HistoryAppended, PartitionClaimed, StartRun
from headwater.schemas.records import Stamp, WebhookReceived
from headwater.schemas.tables import TABLES, Row

body, instance = sys.argv[1].encode(), sys.argv[2]
now_ms = int(time.time() * 1000)
table = next(each for each in TABLES if each.topic == "daily-summary")
width = len(table.columns)
stamp = Stamp(0, 1, 2, "e" * 32, 0, 0)
unset = (None,) * (width - 2)
row = Row(
    ("user_97", "garmin", "2026-06-03"), (6, *unset, "fine"), (stamp, *unset, stamp)
)
records = {
    "webhooks": encode(WebhookReceived(
        event_id="a" * 32, request_id="eu-1", source="terra", type="daily", subject="terra-98",
        reference="user_98", sent_at_ms=now_ms, updated_at_ms=0,
        received_at_ms=now_ms, body=body,
    )),
    "workflow-commands": encode(CommandSent(
        command_id="c", workflow="paced", instance_id=instance, sent_at_ms=now_ms, reply_to=-1,
        command=StartRun("null"), asker="eu",
    )),
    "workflow-history": encode(HistoryAppended(
        workflow="", instance_id="", run_number=0, sequence=0, epoch=-1, cause=-1, at_ms=5,
        events=(PartitionClaimed("the next release"),), region="eu",
    )),
    "daily-summary": encode_row(table, row),
}
print(json.dumps({topic: base64.b64encode(value).decode() for topic, value in records.items()}))
"""


async def put_newer(system: Mixed, instance: str) -> None:
    """Puts a record of the next release into partition 0 of each topic that changes."""
    body = daily(98, 3, 5, known=True).decode()
    made = json.loads(
        await asyncio.to_thread(run, system.trees["new"], "-c", NEWER, body, instance)
    )
    keys = {
        "webhooks": b"a" * 32,
        "workflow-commands": instance_key("paced", instance).encode(),
        "workflow-history": b"the next release",
        "daily-summary": b'["user_97","garmin","2026-06-03"]',
    }
    appender = Appender(cluster=Cluster(system.bootstrap), client_id="upgrade-test")
    await appender.append(
        [Outgoing(topic, 0, keys[topic], base64.b64decode(value)) for topic, value in made.items()]
    )
    await appender.stop()

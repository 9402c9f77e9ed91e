"""Goal: records of other programs' topics become deliveries, each once, whatever happens.

Method: another program writes to three topics while gateways join, are killed and come back.
Afterwards every record has one outcome, unusable ones are dead letters, and the group has committed
its ends.
"""

import asyncio
import base64
import io
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import httpx2
import psycopg
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import TopicPartition

from tests.e2e.system import ADMIN, System, opened
from tests.fakes.json_server import answering
from tests.waiting import ANSWERED_WITHIN_S

ORDERS, EVENTS, PAYMENTS = "shop.orders", "terra.events", "shop.payments"
NUMBER = 300
SOURCES = f"""
every_provider = true

[[source]]
name = "orders"
kind = "kafka"
topic = "{ORDERS}"
format = "json"
id = {{ header = "x-order-id" }}
type = {{ cel = "value.kind" }}
subject = {{ cel = "value.customer" }}
time = {{ cel = "value.at" }}

[[source]]
name = "events"
kind = "kafka"
topic = "{EVENTS}"
format = "json"
provider = "terra"

[[source]]
name = "payments"
kind = "kafka"
topic = "{PAYMENTS}"
format = "avro"
type = {{ cel = "'payment'" }}
subject = {{ cel = "value.customer" }}
"""
RULES = """
[[rule]]
name = "placed"
source = "orders"
type = "placed"
workflow = "fulfil"
mode = "start"
id = "'order-' + string(event.body.number)"
"""
PAYMENT: dict[str, Any] = {
    "type": "record", "name": "Payment", "fields": [
        {"name": "customer", "type": "string"}, {"name": "cents", "type": "long"},
    ],
}  # fmt: skip
REGISTRY = {"/schemas/ids/7": {"schema": json.dumps(PAYMENT)}}
#: The other program: it knows nothing of Headwater.
PROGRAM = """
import asyncio, base64, json, sys
from aiokafka import AIOKafkaProducer

async def main():
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1], acks="all") as producer:
        for line in sys.stdin:
            topic, partition, value, headers = json.loads(line)
            value = None if value is None else base64.b64decode(value)
            headers = [(name, text.encode()) for name, text in headers.items()]
            await producer.send(topic, value, b"key", partition=partition, headers=headers)

asyncio.run(main())
"""
Record = tuple[str, int, bytes | None, Mapping[str, str]]


def write(system: System, records: Sequence[Record]) -> None:
    lines = "\n".join(
        json.dumps(
            (topic, partition, None if value is None else base64.b64encode(value).decode(), headers)
        )
        for topic, partition, value, headers in records
    )
    command = [sys.executable, "-c", PROGRAM, system.bootstrap]
    subprocess.run(command, input=lines, text=True, check=True, timeout=ANSWERED_WITHIN_S)


def order(number: int, *, copy: bool = False) -> Record:
    value = {"kind": "placed", "customer": number % 5, "at": 1_782_900_000_000, "number": number}
    partition = (number + copy) % 3
    return ORDERS, partition, json.dumps(value).encode(), {"X-Order-Id": f"o-{number}"}


def payment(number: int) -> Record:
    stream = io.BytesIO(b"\0\0\0\0\x07")
    stream.seek(5)
    value = {"customer": f"c{number % 5}", "cents": number}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(PAYMENT), value)
    return PAYMENTS, number % 3, stream.getvalue(), {}


def daily(number: int) -> Record:
    user = {"user_id": f"t{number}", "provider": "GARMIN", "reference_id": f"user_{number}"}
    data = {"metadata": {"start_time": "2026-07-01T00:00:00Z"}, "distance_data": {"steps": number}}
    value = {"type": "daily", "user": user, "data": [data]}
    return EVENTS, number % 3, json.dumps(value).encode(), {}


UNUSABLE: list[Record] = [
    (ORDERS, 0, b"{", {"x-order-id": "bad-1"}),
    (ORDERS, 1, b'{"kind":"placed"}', {}),
    (ORDERS, 2, b'{"customer":1}', {"x-order-id": "bad-2"}),
    (ORDERS, 2, None, {"x-order-id": "bad-3"}),
    (EVENTS, 0, b"[]", {}),
    (PAYMENTS, 0, b"\0\0\0\0\x09rest", {}),
    (PAYMENTS, 1, b"\xff", {}),
]
REASONS = {
    ("orders", "malformed_payload"): 3, ("orders", "missing_type"): 1,
    ("events", "malformed_payload"): 1, ("payments", "undecodable"): 2,
}  # fmt: skip


@pytest.fixture
def system(scratch: Path, fresh_database: str) -> Iterator[System]:
    directory = scratch / "topics"
    directory.mkdir()
    sources, rules = directory / "sources.toml", directory / "rules.toml"
    sources.write_text(SOURCES)
    rules.write_text(RULES)
    with (
        answering(REGISTRY.get) as (registry, _),
        opened(
            System(
                directory,
                fresh_database,
                HEADWATER_SOURCES=str(sources),
                HEADWATER_RULES=str(rules),
                HEADWATER_SCHEMA_REGISTRY=registry,
            ),
            parts=(),
        ) as system,
    ):
        asyncio.run(create_topics(system.bootstrap))
        yield system


async def create_topics(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        names = {ORDERS, EVENTS, PAYMENTS}
        await admin.create_topics([NewTopic(name, 3, 1) for name in names])
        while not names <= set(await admin.list_topics()):  # noqa: ASYNC110 (nobody would tell)
            await asyncio.sleep(0.1)
    finally:
        await admin.close()


def counted(system: System) -> dict[tuple[str, str, str], int]:
    with psycopg.connect(system.dsn) as connection:
        query = "select source, status, reason, count(*) from webhook_outcomes group by 1, 2, 3"
        rows = connection.execute(query).fetchall()
    return {(source, status, reason): number for source, status, reason, number in rows}


def selected(system: System, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(system.dsn) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


async def behind(bootstrap: str) -> int:
    """How many records of the topics are not committed."""
    total = 0
    for source, topic in (("orders", ORDERS), ("events", EVENTS), ("payments", PAYMENTS)):
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=f"headwater-source-{source}",
            enable_auto_commit=False,
        )  # fmt: skip
        await consumer.start()
        try:
            partitions = [TopicPartition(topic, number) for number in range(3)]
            ends = await consumer.end_offsets(partitions)
            for tp in partitions:
                total += ends[tp] - (await consumer.committed(tp) or 0)
        finally:
            await consumer.stop()
    return total


@pytest.mark.timeout(900)
def test_topics_of_another_program_are_read_once_over_a_rebalance_and_a_kill(system: System):
    thirds = [range(*pair) for pair in pairwise([0, NUMBER // 3, 2 * NUMBER // 3, NUMBER])]

    def batch(numbers: range) -> list[Record]:
        return [make(number) for number in numbers for make in (order, payment, daily)]

    write(system, batch(thirds[0]) + UNUSABLE)
    system.start("gateway")
    system.start("worker")
    system.start("project")
    system.wait(lambda: sum(counted(system).values()) > 50, "the first records to be read")
    system.start("gateway2")
    write(system, [*batch(thirds[1]), *(order(number, copy=True) for number in thirds[0])])
    system.wait(lambda: sum(counted(system).values()) > NUMBER, "more records to be read")
    write(system, batch(thirds[2]))
    system.kill("gateway")
    expected = {
        ("orders", "skipped", "no_normalizer"): NUMBER,
        ("payments", "skipped", "no_normalizer"): NUMBER,
        ("events", "processed", ""): NUMBER,
        **{(source, "dead", reason): number for (source, reason), number in REASONS.items()},
    }
    total = sum(expected.values())
    system.wait(lambda: sum(counted(system).values()) == total, f"{total} outcomes", 300.0)
    assert counted(system) == expected
    system.wait(lambda: asyncio.run(behind(system.bootstrap)) == 0, "all offsets to be committed")

    assert selected(system, "select count(*), sum(steps) from daily_summary") == [
        (NUMBER, NUMBER * (NUMBER - 1) // 2)
    ]
    started = "select count(distinct instance_id) from effects where workflow = 'fulfil'"
    system.wait(lambda: selected(system, started) == [(NUMBER,)], "orders to start workflows")
    subjects = "select distinct subject from webhook_outcomes where source = 'payments'"
    assert {f"c{number}" for number in range(5)} <= {name for (name,) in selected(system, subjects)}
    letters = "select count(*), count(value) from dead_letters"
    assert selected(system, letters) == [(len(UNUSABLE), len(UNUSABLE))]
    has_a_trace_by_its_position(system)


def has_a_trace_by_its_position(system: System) -> None:
    query = "select request_id from webhook_outcomes where source = 'orders' and status <> 'dead'"
    position = selected(system, f"{query} limit 1")[0][0]
    url = f"{system.url('gateway2')}/admin/traces"
    answer = httpx2.get(
        url, params={"request_id": position}, headers=ADMIN, timeout=ANSWERED_WITHIN_S
    )
    hops = answer.json()["traces"][0]["hops"]
    assert position.startswith(f"{ORDERS}/")
    assert (hops[0]["stage"], hops[0]["position"]) == ("received", position)

"""What is read of limits of concurrency: who waits for a slot, behind how many, and how deep."""

from typing import Any

import psycopg
from litestar.testing import TestClient

from headwater.projections.workflows.queries import Workflows
from headwater.schemas.answers import InstanceFound, WorkflowListed
from headwater.schemas.history import (
    ClaimedWorkflow,
    PartitionClaimed,
    RunStarted,
    SlotAsked,
    SlotGranted,
    SlotQueued,
    SlotReturned,
    SlotsGiven,
    SlotsLimited,
)
from tests.integration.test_gateway_reads import gateway_on
from tests.integration.test_workflow_projection import project
from tests.integration.test_workflow_projection_queries import asking
from tests.unit.projections.histories import Log


def five_orders() -> Log:
    """Of region eu there are two slots, and four who want one; of us one."""
    log = Log(partitions=[[]])
    epoch = log.claim()
    log.partitions[0].clear()
    claimed = (
        ClaimedWorkflow("free", "replay"),
        ClaimedWorkflow("order", "replay", limit=2, limit_key="params.region"),
    )
    log.write("", PartitionClaimed("me", claimed), workflow="", epoch=epoch)
    for number in range(5):
        slots, key = ("~us", '"us"') if number == 4 else ("~eu", '"eu"')
        log.write(f"o-{number}", RunStarted("{}", "seed", kind="replay"), SlotAsked(slots, key))
        begun = [RunStarted(key, "", kind="slots"), SlotsLimited(2)] if number in (0, 4) else []
        position = 0 if number == 4 else number
        provided = [SlotsGiven(position)] if number in (0, 1, 4) else []
        log.write(slots, *begun, SlotQueued(f"o-{number}#0#seed", position, key), *provided)
    log.write("o-0", SlotGranted())
    log.write("o-1", SlotGranted())
    return log


def read(dsn: str, log: Log) -> tuple[list[WorkflowListed], dict[str, InstanceFound]]:
    project(dsn, log, 100)
    listed: list[WorkflowListed] = []
    result: dict[str, InstanceFound] = {}

    async def scenario(workflows: Workflows) -> None:
        page = await workflows.instances("order", limit=10)
        whole = await workflows.instance("order", "o-3")
        assert whole is not None
        result.update({row.id: row for row in page.rows})
        assert whole.instance.meta.awaited_slot == result["o-3"].awaited_slot
        listed.extend(await workflows.registered())

    asking(dsn, log, scenario)
    return listed, result


def counted(gateway: TestClient[Any]) -> set[str]:
    lines = gateway.get("/metrics").text.splitlines()
    return {line for line in lines if line.startswith("headwater_concurrency_runs{")}


def test_metrics_count_by_workflow_who_runs_and_who_waits(migrated: str):
    read(migrated, five_orders())
    with gateway_on(migrated) as gateway:
        result = counted(gateway)
        assert result == {
            'headwater_concurrency_runs{state="running",workflow="order"} 3.0',
            'headwater_concurrency_runs{state="waiting",workflow="order"} 2.0',
        }
        with psycopg.connect(migrated) as postgres:
            postgres.execute("truncate workflow_slot")
        assert counted(gateway) == result, "who asks often is answered without a query"


def test_it_is_shown_who_waits_for_a_slot_and_how_many_wait_of_a_limit(migrated: str):
    log = five_orders()
    (free, order), result = read(migrated, log)
    assert free.concurrency is None
    limit = order.concurrency
    assert limit is not None
    assert (limit.limit, limit.key, limit.held, limit.waiting) == (2, "params.region", 3, 2)
    assert [(slot.key, slot.held, slot.waiting) for slot in limit.slots] == [
        ("eu", 2, 2),
        ("us", 1, 0),
    ]
    assert limit.slots[0].waiting_since is not None
    waits = {name: item.awaited_slot for name, item in result.items()}
    assert {name for name, slot in waits.items() if slot is not None} == {"o-2", "o-3"}
    second, third = waits["o-2"], waits["o-3"]
    assert second is not None
    assert third is not None
    assert (second.key, second.limit, second.before) == ("eu", 2, 0)
    assert (third.key, third.limit, third.before) == ("eu", 2, 1)
    log.write("~eu", SlotReturned(0), SlotsGiven(2))
    log.write("o-2", SlotGranted())
    (_, order), result = read(migrated, log)
    assert result["o-2"].awaited_slot is None
    third = result["o-3"].awaited_slot
    assert third is not None
    assert third.before == 0
    assert order.concurrency is not None
    assert order.concurrency.waiting == 1

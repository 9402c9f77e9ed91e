"""The rows of deployments are what the fold of their topic says."""

import asyncio

import msgspec
import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.deployments import Deployments
from headwater.processors.runs.claims import claim_of
from headwater.processors.runs.slots import Concurrency
from headwater.projections.deliveries.queries import Reader
from headwater.projections.deployments import DEPLOYMENTS
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.codec import encode
from headwater.schemas.deployments import DeployedWorkflow, DeploymentActivated, DeploymentCreated
from headwater.schemas.topics import DEPLOYMENTS as TOPIC
from tests.integration.one_topic import project, rows
from tests.integration.test_workflow_projection import project as project_histories
from tests.unit.projections.histories import START_MS, Log

PLACE = (TOPIC, 0)
NAMES = st.sampled_from(["dep_a", "dep_b", "dep_c"])


def created(name: str, by: str) -> DeploymentCreated:
    return DeploymentCreated(
        id=name,
        app="shop",
        digest=f"digest of {name}",
        size=3,
        offset=0,
        workflows=(DeployedWorkflow(name="order", kind="replay"),),
        by=by,
        at_ms=START_MS,
    )


def activated(name: str, after: str, by: str) -> DeploymentActivated:
    return DeploymentActivated(id=name, after=after, rollback=False, by=by, at_ms=START_MS + 1)


KEYS = st.sampled_from(["admin:1", "admin:2"])
RECORDS = st.one_of(
    st.builds(created, NAMES, KEYS),
    st.builds(activated, NAMES, st.sampled_from(["", "", "dep_a", "dep_b", "none"]), KEYS),
)


def test_rows_are_those_of_the_fold(module_migrated: str):

    @settings(max_examples=60)
    @given(st.lists(RECORDS, max_size=12), st.lists(st.integers(0, 12), max_size=3))
    def held(records: list[DeploymentCreated | DeploymentActivated], cuts: list[int]) -> None:
        with psycopg.connect(module_migrated) as connection:
            connection.execute("truncate deployment, settings, projection_offsets")
        result = Deployments()
        for record in records:
            result.apply(record)
        project(DEPLOYMENTS, module_migrated, [encode(record) for record in records], cuts)
        active = [] if result.active is None else [("active_deployment", result.active.id)]
        assert rows(module_migrated, "select key, value from settings") == active
        assert rows(
            module_migrated,
            "select id, digest, created_by, workflows,"
            " (extract(epoch from activated_at) * 1000)::bigint from deployment order by id",
        ) == [
            (item.id, item.digest, item.by, ["order"], result.activated_at_ms.get(item.id))
            for _, item in sorted(result.by_id.items())
        ]

    held()


def test_a_record_that_cannot_be_read_is_kept_and_stops_no_other(migrated: str):
    project(DEPLOYMENTS, migrated, [b"\xff?", encode(created("dep_a", "admin:1"))], [])
    assert rows(migrated, "select topic, partition from projection_errors") == [PLACE]
    assert rows(migrated, "select id from deployment") == [("dep_a",)]


def test_what_is_deployed_is_listed_and_the_active_one_says_how_it_is(migrated: str):
    number, text = '{"type":"integer"}', '{"type":"string"}'
    first = msgspec.structs.replace(
        created("dep_a", "admin:1"),
        workflows=(
            DeployedWorkflow(name="order", kind="replay", params=number, limit=2),
            DeployedWorkflow(name="gone", kind="replay", params=number),
        ),
    )
    second = msgspec.structs.replace(
        created("dep_b", "admin:1"),
        workflows=(DeployedWorkflow(name="order", kind="replay", params=text, limit=3),),
    )

    def listed(*active: str) -> list[tuple[str, str | None, int | None]]:
        with psycopg.connect(migrated) as connection:
            connection.execute("truncate deployment, settings, projection_offsets")
        records = [first, second, *(activated(item, "", "admin:1") for item in active)]
        project(DEPLOYMENTS, migrated, [encode(record) for record in records], [])

        async def ask() -> list[tuple[str, str | None, int | None]]:
            async with Reader(migrated) as reader:
                return [
                    (
                        item.name,
                        item.params_schema and bytes(item.params_schema).decode(),
                        item.concurrency and item.concurrency.limit,
                    )
                    for item in await Workflows(reader).registered()
                ]

        return asyncio.run(ask())

    assert listed() == [("gone", None, None), ("order", None, None)]
    assert listed("dep_a") == [("gone", number, None), ("order", number, 2)]
    log = Log([[]])
    limits = {"order": Concurrency(9)}
    log.partitions[0].append(claim_of("me", {"order": "replay"}, START_MS, {}, limits))
    project_histories(migrated, log)
    assert listed("dep_a", "dep_b") == [("gone", None, None), ("order", text, 3)]

"""The rows of deployments and of API keys are what the folds of their topics say."""

import asyncio

import msgspec
import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.processors.api_keys import ApiKeys
from headwater.processors.deployments import Deployments
from headwater.processors.runs.claims import claim_of
from headwater.processors.runs.slots import Concurrency
from headwater.projections.api_keys import API_KEYS
from headwater.projections.deliveries.queries import Reader
from headwater.projections.deployments import DEPLOYMENTS
from headwater.projections.workflows.queries import Workflows
from headwater.schemas.api_keys import (
    ApiKeyCreated,
    ApiKeyRecord,
    ApiKeyRevoked,
    ApiKeyRotated,
    ApiKeyUsed,
)
from headwater.schemas.codec import encode
from headwater.schemas.deployments import (
    DeployedWorkflow,
    DeploymentActivated,
    DeploymentCreated,
    DeploymentRecord,
    DeploymentRetired,
)
from headwater.schemas.topics import DEPLOYMENTS as TOPIC
from tests.integration.one_topic import project, rows
from tests.integration.test_workflow_projection import project as project_histories
from tests.unit.projections.histories import START_MS, Log

PLACE = (TOPIC, 0)
TABLES = "deployment, retired_deployment, settings, projection_offsets"
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


def activated(
    name: str, after: str, by: str, percent: int = 100, *, rollback: bool = False
) -> DeploymentActivated:
    return DeploymentActivated(
        id=name, after=after, rollback=rollback, by=by, at_ms=START_MS + 1, percent=percent
    )


def retired(name: str, stage: str, closing: str) -> DeploymentRetired:
    return DeploymentRetired(id=name, stage=stage, closing=closing, by="admin:1", at_ms=START_MS)


KEYS = st.sampled_from(["admin:1", "admin:2"])
RECORDS = st.one_of(
    st.builds(created, NAMES, KEYS),
    st.builds(
        activated,
        NAMES,
        st.sampled_from(["", "", "dep_a", "dep_b", "none", "dep_a+dep_b@10"]),
        KEYS,
        st.sampled_from([100, 100, 100, 0, 10, 50]),
        rollback=st.booleans(),
    ),
    st.builds(
        retired,
        NAMES,
        st.sampled_from(["closed", "closed", "reopened", "removed"]),
        st.sampled_from(["c1", "c2"]),
    ),
)


def test_rows_are_those_of_the_fold(module_migrated: str):

    @settings(max_examples=100)
    @given(st.lists(RECORDS, max_size=14), st.lists(st.integers(0, 12), max_size=3))
    def held(records: list[DeploymentRecord], cuts: list[int]) -> None:
        with psycopg.connect(module_migrated) as connection:
            connection.execute(f"truncate {TABLES}")
        result = Deployments()
        for record in records:
            result.apply(record)
        project(DEPLOYMENTS, module_migrated, [encode(record) for record in records], cuts)
        stored = [("active_deployment", name) for name in result.activations[-1:]]
        if result.share is not None:
            stored.append(("shared_deployment", result.share.deployment))
            stored.append(("shared_percent", str(result.share.percent)))
        assert rows(module_migrated, "select key, value from settings order by key") == stored
        assert rows(
            module_migrated, "select id, stage, closing from retired_deployment order by id"
        ) == [(item.id, item.stage, item.closing) for _, item in sorted(result.retired.items())]
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
            connection.execute(f"truncate {TABLES}")
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


KEY_IDS = st.sampled_from(["key_a", "key_b"])


def key_created(key_id: str, expires_at_ms: int, by: str = "admin:1") -> ApiKeyCreated:
    return ApiKeyCreated(
        id=key_id,
        project="shop",
        name="ci",
        role="viewer",
        scopes=("jobs:work",),
        digest="digest",
        expires_at_ms=expires_at_ms,
        rate_limit=0,
        by=by,
        at_ms=START_MS,
    )


def key_rotated(key_id: str, until_ms: int) -> ApiKeyRotated:
    return ApiKeyRotated(
        id=key_id,
        digest="new digest",
        previous_until_ms=START_MS + until_ms,
        expires_at_ms=0,
        by="admin:1",
        at_ms=START_MS + 1,
    )


def key_revoked(key_id: str, by: str) -> ApiKeyRevoked:
    return ApiKeyRevoked(id=key_id, by=by, at_ms=START_MS + 2)


def key_used(key_id: str, at_ms: int) -> ApiKeyUsed:
    return ApiKeyUsed(id=key_id, at_ms=START_MS + at_ms)


MILLISECONDS = st.integers(1, 10).map(lambda number: number * 1000)
KEY_RECORDS = st.one_of(
    st.builds(
        key_created, KEY_IDS, st.sampled_from([0, START_MS + 5000]), st.one_of(KEYS, KEY_IDS)
    ),
    st.builds(key_rotated, KEY_IDS, MILLISECONDS),
    st.builds(key_revoked, KEY_IDS, KEYS),
    st.builds(key_used, KEY_IDS, MILLISECONDS),
)


KEY_ROWS = """
    select id, project_id, role, scopes, revoked_by,
           coalesce(extract(epoch from expires_at) * 1000, 0),
           coalesce(extract(epoch from rotated_at) * 1000, 0),
           coalesce(extract(epoch from previous_until) * 1000, 0),
           coalesce(extract(epoch from revoked_at) * 1000, 0),
           coalesce(extract(epoch from last_used_at) * 1000, 0)
    from api_keys order by id
"""


def test_rows_of_keys_are_those_of_the_fold_and_have_no_digests(module_migrated: str):

    @settings(max_examples=40)
    @given(st.lists(KEY_RECORDS, max_size=12), st.lists(st.integers(0, 12), max_size=3))
    def held(records: list[ApiKeyRecord], cuts: list[int]) -> None:
        with psycopg.connect(module_migrated) as connection:
            connection.execute("truncate api_keys, projection_offsets")
        result = ApiKeys()
        for record in records:
            result.apply(record)
        project(API_KEYS, module_migrated, [encode(record) for record in records], cuts)
        assert rows(module_migrated, KEY_ROWS) == [
            (
                key.created.id,
                "shop",
                "viewer",
                ["jobs:work"],
                key.revoked_by or None,
                key.expires_at_ms,
                key.rotated_at_ms,
                key.secrets[1].until_ms if len(key.secrets) > 1 else 0,
                key.revoked_at_ms,
                key.last_used_at_ms,
            )
            for _, key in sorted(result.by_id.items())
        ]
        assert "digest" not in str(rows(module_migrated, "select * from api_keys"))

    held()

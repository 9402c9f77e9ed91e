"""Each row of the audit log has the hash that its entry and all before it come to."""

import asyncio
from collections.abc import Iterator, Sequence

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.projections.audit import AUDIT, GENESIS, AuditFilter, entry_of, linked, newest
from headwater.projections.postgres.connections import PooledReader
from headwater.schemas.codec import encode
from headwater.schemas.records import OperationAudited
from headwater.schemas.topics import AUDIT as TOPIC
from tests.integration.one_topic import project, rows
from tests.unit.projections.histories import START_MS

PLACE = (TOPIC, 0)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def records(draw: st.DrawFn) -> list[OperationAudited]:
    return [
        OperationAudited(
            id=f"entry-{number}",
            key_id=draw(TEXTS),
            project_id="default",
            action=draw(TEXTS),
            resource=draw(TEXTS),
            result=draw(st.sampled_from(["success", "failure"])),
            ip="127.0.0.1",
            user_agent=draw(TEXTS),
            metadata=draw(st.sampled_from(["{}", '{"runId":"run-1"}', '{"note":"ÿ \U0001f600"}'])),
            at_ms=START_MS + draw(st.integers(0, 10**9)),
        )
        for number in range(draw(st.integers(0, 12)))
    ]


def hashes(found: Sequence[OperationAudited], offsets: Sequence[int]) -> Iterator[bytes]:
    held = GENESIS
    for record, offset in zip(found, offsets, strict=True):
        held = linked(held, entry_of(record, offset))
        yield held


def test_rows_are_chained_however_they_come_in_batches(module_migrated: str):

    @settings(max_examples=60)
    @given(records(), st.lists(st.integers(0, 12), max_size=3))
    def held(found: list[OperationAudited], cuts: list[int]) -> None:
        with psycopg.connect(module_migrated) as connection:
            connection.execute("truncate audit_logs, projection_offsets")
        project(AUDIT, module_migrated, [encode(record) for record in found], cuts)
        expected = [*hashes(found, range(len(found)))]
        assert rows(module_migrated, 'select hash from audit_logs order by "offset"') == [
            (item,) for item in expected
        ]

    held()


def test_a_record_that_cannot_be_read_or_taken_has_no_row_and_breaks_no_chain(migrated: str):
    good = OperationAudited(
        id="one", key_id="k", project_id="p", action="a", resource="/r", result="success",
        ip="i", user_agent="u", metadata="{}", at_ms=START_MS,
    )  # fmt: skip
    other = OperationAudited(
        id="two", key_id="k", project_id="p", action="a", resource="/r", result="success",
        ip="i", user_agent="u", metadata="{}", at_ms=START_MS,
    )  # fmt: skip
    values = [b"\xff?", encode(good), encode(good), encode(other)]
    project(AUDIT, migrated, values, [])
    assert rows(migrated, 'select "offset" from projection_errors order by 1') == [(0,), (2,)]
    result = rows(migrated, 'select "offset", hash from audit_logs order by "offset"')
    assert result == [*zip([1, 3], hashes([good, other], [1, 3]), strict=True)]


def test_entries_of_a_run_are_found_also_where_they_are_about_several(module_migrated: str):
    with psycopg.connect(module_migrated) as connection:
        connection.execute("truncate audit_logs, projection_offsets")
    kinds = {
        "one": '{"runId":"run-1"}',
        "several": '{"runIds":["run-2","run-1"]}',
        "claimed": '{"claimedRunId":"run-1","runId":"run-2"}',
        "none": "{}",
    }
    values = [
        OperationAudited(
            id=name, key_id="k", project_id="p", action="a", resource="/r", result="success",
            ip="i", user_agent="u", metadata=metadata, at_ms=START_MS,
        )
        for name, metadata in kinds.items()
    ]  # fmt: skip
    project(AUDIT, module_migrated, [encode(value) for value in values], [])

    async def found(run_id: str) -> list[str]:
        async with PooledReader(module_migrated) as reader:
            entries, _ = await newest(reader, AuditFilter(run_id=run_id), limit=10)
        return [entry.entry.id for entry in entries]

    assert asyncio.run(found("run-1")) == ["several", "one"]
    assert asyncio.run(found("run-2")) == ["claimed", "several"]
    assert asyncio.run(found("run-3")) == []

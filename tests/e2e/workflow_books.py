"""A system of workflows with a Postgres: what steps enter there by SQL, and what is projected.

The server is the system's own, so that it can be killed.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

import psycopg
from typing_extensions import override

from headwater.projections.postgres.embedded import EmbeddedPostgres
from headwater.projections.postgres.migrate import migrate
from headwater.projections.workflows.plan import WORKFLOWS
from headwater.schemas.history import PartitionClaimed, StepCompleted
from tests.databases import of_authors
from tests.e2e.workflow_app import ENTRIES
from tests.e2e.workflow_system import Mark, Story, WorkflowSystem
from tests.integration.test_workflow_projection import rows_of
from tests.unit.projections.workflow_fold import Fold, Row

#: Without a key, so that what takes effect twice is there twice.
TABLES = """
CREATE TABLE entries (
    scene text, instance text, key text, line text, at timestamptz DEFAULT clock_timestamp()
);
CREATE TABLE counters (scene text, key text, entered integer)
"""
_PROJECTOR = "project"


class BookSystem(WorkflowSystem):
    """A system with a Postgres and a projector."""

    def __init__(self, directory: Path, *apps: str) -> None:
        super().__init__(directory, *apps)
        self.postgres = EmbeddedPostgres(directory / "postgres", report=print)
        self.dsn = ""
        self.scene = ""

    @override
    def open(self) -> None:
        super().open()
        self.dsn = self.postgres.start()
        self.settings["HEADWATER_POSTGRES"] = self.dsn
        # As the fold has it.
        self.settings["HEADWATER_RETENTION"] = "1 day"
        migrate(self.dsn, lambda _: None)
        with psycopg.connect(of_authors(self.dsn), autocommit=True) as connection:
            connection.execute(TABLES)
            # Processes are killed here, not the machine: what they have written is not lost.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        self.project()

    @override
    def close(self) -> None:
        super().close()
        self.postgres.stop()

    def project(self) -> None:
        """Starts the projector."""
        self.launch(_PROJECTOR, ["headwater", "project"], {})

    def kill_projector(self) -> None:
        """kill -9, and another one takes its place."""
        self.kill(_PROJECTOR)
        self.project()

    @property
    def workers(self) -> dict[str, Popen[bytes]]:
        return {name: part for name, part in self.parts.items() if name != _PROJECTOR}

    def ask(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(of_authors(self.dsn)) as connection:
            return connection.execute(query.encode(), values).fetchall()

    # -- what steps enter

    def begin(self, scene: str) -> None:
        """Begins a scene; its instances have ids that begin with its name and a hyphen."""
        self.scene = scene
        with psycopg.connect(of_authors(self.dsn)) as connection:
            keys = [(scene, f"e{number}") for number in range(ENTRIES)]
            connection.cursor().executemany("INSERT INTO counters VALUES (%s, %s, 0)", keys)

    def concerns(self, instance_id: str) -> bool:
        """Whether an instance is of this scene."""
        return instance_id.startswith(f"{self.scene}-")

    def claims(self) -> dict[int, int]:
        """Who may commit steps: epochs by partition."""
        return dict(self.ask("SELECT partition, epoch FROM step_epochs"))

    def check_entries(self, story: Story) -> None:
        """Every completed step has its lines once, no other has any, and none was begun after."""
        completed = Counter(
            (reported.key, event.key, json.loads(event.result))
            for reported in story.told
            if reported.counts
            and reported.record.workflow == "bookkeeper"
            and self.concerns(reported.record.instance_id)
            for event in reported.record.events
            if isinstance(event, StepCompleted)
        )
        at_us = "(extract(epoch FROM at) * 1000000)::bigint"
        query = f"SELECT instance, key, line, {at_us} FROM entries WHERE scene = %s"  # noqa: S608
        entries = self.ask(query, [self.scene])
        result = Counter(tuple(entry[:3]) for entry in entries)
        assert result == completed, f"too much: {result - completed}, missing: {completed - result}"
        instances = len({instance for instance, *_ in entries})
        query = "SELECT key, entered FROM counters WHERE scene = %s"
        assert dict(self.ask(query, [self.scene])) == {f"e{n}": instances for n in range(ENTRIES)}
        self._check_late({(entry[0], entry[1]): entry[3] for entry in entries})

    def _check_late(self, entered_us: dict[tuple[str, str], int]) -> None:
        # Who takes a partition over waits for what its former owner has sent to Postgres.
        late: list[Mark] = [
            mark
            for mark in self.marks()
            if mark.at_ns // 1_000 > entered_us.get((mark.instance, mark.key), mark.at_ns)
        ]
        assert not late, f"begun after its SQL took effect: {late}"

    # -- what is projected

    def applied(self) -> dict[int, int]:
        """How far the projector has come, by partition."""
        query = "SELECT partition, next_offset FROM projection_offsets WHERE projection = %s"
        return dict(self.ask(query, [WORKFLOWS.name]))

    async def check_rows(self, story: Story) -> None:
        """The rows of the scene's instances are those of the fold of the history."""
        least = story.ends()
        taken: list[tuple[dict[int, int], dict[str, list[Row]]]] = []

        def take() -> bool:
            """Takes all rows at once: nothing was applied meanwhile, and all of that was read."""
            applied = self.applied()
            if any(applied.get(number, 0) < end for number, end in least.items()):
                return False
            rows, read = rows_of(self.dsn), story.ends()
            if applied == self.applied() and all(read[n] >= end for n, end in applied.items()):
                taken.append((applied, rows))
            return bool(taken)

        await self.until(story, take, "the projector")
        [(applied, rows)] = taken
        expected = Fold().add_all(
            (reported.partition, reported.offset, reported.record)
            for reported in story.told
            if reported.offset < applied[reported.partition]
            and (
                self.concerns(reported.record.instance_id)
                or isinstance(reported.record.events[0], PartitionClaimed)
            )
        )
        for table, fold in expected.rows().items():
            # Rows that are of no instance are those of everybody.
            result = [
                row
                for row in rows[table]
                if "instance_id" not in row or self.concerns(row["instance_id"])
            ]
            assert result == fold, f"{table} is not the fold: {_differences(result, fold)}"
        errors = self.ask("SELECT * FROM projection_errors")
        assert not errors, errors


def _differences(found: list[Row], fold: list[Row]) -> list[Row]:
    return [row for row in found if row not in fold] + [row for row in fold if row not in found]

"""What campaigns of faults share: a system with its own Postgres, and a watch on its progress."""

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import psycopg
from typing_extensions import override

from headwater.projections.postgres.connections import own_dsn
from headwater.projections.postgres.embedded import EmbeddedPostgres
from tests.e2e.system import System
from tests.waiting import ANSWERED_WITHIN_S

#: How long a system under load may make no progress without a line in a log.
SILENCE_MAX_S = 60.0
WORKFLOW_KEY = {"x-api-key": "dev-workflow-key"}
ROOT = Path(__file__).resolve().parents[2]


class OwnPostgresSystem(System):
    """A system whose Postgres can be stopped, copied, killed and replaced by an older copy."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.postgres = EmbeddedPostgres(directory / "postgres", report=print)
        self._data = directory / "postgres" / "pgdata"
        self._standby = directory / "standby"
        super().__init__(directory, self.postgres.start(), PYTHONPATH=str(ROOT), **settings)

    def copy_to_standby(self) -> None:
        """Bring the standby up to date; the server is stopped while it is copied."""
        self.postgres.stop()
        shutil.rmtree(self._standby, ignore_errors=True)
        # `cp -a` keeps the owners, which may be those of another account.
        subprocess.run(["cp", "-a", self._data, self._standby], check=True)
        self.postgres.start()

    def fail_over(self) -> None:
        """Kill the server; the standby takes its place with what it had when it was copied."""
        self.postgres.kill()
        shutil.rmtree(self._data)
        subprocess.run(["cp", "-a", self._standby, self._data], check=True)
        self.postgres.start()

    @override
    def close(self) -> None:
        super().close()
        self.postgres.kill()


@contextmanager
def never_silent(system: System) -> Iterator[None]:
    """Fail if the system makes no progress for a minute and logs nothing meanwhile.

    Progress is a new record in the projection of any topic.
    """
    over = threading.Event()
    silences: list[float] = []

    def watch() -> None:
        last, since = _signs_of_life(system), time.monotonic()
        while not over.wait(1.0):
            signs = _signs_of_life(system)
            if signs != last:
                last, since = signs, time.monotonic()
            silences.append(time.monotonic() - since)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
    assert max(silences, default=0.0) <= SILENCE_MAX_S


def _signs_of_life(system: System) -> tuple[int, int]:
    projected = -1
    with (
        suppress(psycopg.Error),
        psycopg.connect(own_dsn(system.dsn), connect_timeout=2) as connection,
    ):
        rows = connection.execute("select sum(next_offset)::bigint from projection_offsets")
        projected = (rows.fetchone() or (0,))[0] or 0
    return projected, sum(log.stat().st_size for log in system.directory.glob("*.log"))


class Reader:
    """A client that creates instances and reads each as soon as the creation was answered."""

    def __init__(self, system: System, workflow: str) -> None:
        self._system = system
        self._instances = f"{system.url()}/api/workflows/workflows/{workflow}/instances"
        #: Why the latest creation was refused.
        self.refused = ""
        self.created: list[str] = []
        self._readable: list[str] = []
        #: Instances whose creation was answered, and that were then answered 404.
        self.unknown: list[str] = []

    def create_and_read(self, number: int) -> None:
        """Create one instance and read it back; only a read that answers 404 is recorded."""
        instance = f"i-{number}"
        with suppress(httpx2.TransportError):
            answer = httpx2.post(
                self._instances,
                json={"id": instance, "params": None},
                headers=WORKFLOW_KEY,
                timeout=ANSWERED_WITHIN_S,
            )
            # One whose creation was answered too late exists when it is tried again.
            if not answer.is_success and answer.status_code != httpx2.codes.CONFLICT:
                self.refused = answer.text
                return
            self.created.append(instance)
            # 202 promises no more than that it will be readable.
            if answer.status_code != httpx2.codes.ACCEPTED:
                self._readable.append(instance)
        for created in self._readable[-1:] + self._readable[-50:-40:5]:
            with suppress(httpx2.TransportError):
                url = f"{self._instances}/{created}"
                status = httpx2.get(
                    url, headers=WORKFLOW_KEY, timeout=ANSWERED_WITHIN_S
                ).status_code
                if status == httpx2.codes.NOT_FOUND:
                    self.unknown.append(created)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Create and read from another thread."""
        over = threading.Event()

        def has_begun() -> bool:
            self.create_and_read(0)
            return bool(self.created)

        try:
            self._system.wait(has_begun, "the first instance")
        except AssertionError as error:
            raise AssertionError(f"{error}\nthe latest refusal: {self.refused}") from None

        def work() -> None:
            number = 0
            while not over.is_set():
                number += 1
                self.create_and_read(number)

        working = threading.Thread(target=work)
        working.start()
        try:
            yield
        finally:
            over.set()
            working.join()

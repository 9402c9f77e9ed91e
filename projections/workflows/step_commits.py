"""The SQL of steps on Postgres: each step one transaction, which takes effect once.

Theory of operation: a transaction first locks the claim of its partition for share, which refuses
it to superseded owners, and writes a row that names the step. Only when Postgres has answered to
both are the statements sent, and only after the last of them COMMIT. So whatever is late on the
wire cannot take effect by itself; and who asks for the same step again waits for a transaction
whose end nobody knows, and then finds its row.

The statements run as a role of their own, which reaches no table of Headwater's (`step_role`), and
with the search_path of the connection's. They are
sent one by one and by the extended protocol, which takes one statement at a time: their first words
say whether they would end the transaction, and such a step is refused before anything is sent.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any, Final, TypeAlias

import msgspec
import psycopg
from psycopg import AsyncConnection, errors, sql
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from headwater.processors.runs.requests import StepReturned
from headwater.processors.runs.step_commits import (
    EffectUnknown,
    StepCommit,
    StepId,
    refusal,
    settled,
)
from headwater.projections.errors import RecordRefused, store_edge
from headwater.projections.postgres.pooled import Pooled
from headwater.projections.postgres.statements import statement
from headwater.projections.postgres.step_role import STEP_ROLE
from headwater.schemas.errors import (
    InvariantViolation,
    StoreUnavailable,
    Superseded,
    UndecodableRecord,
)
from headwater.schemas.failures import DATA, UNIQUE_CONSTRAINT
from headwater.schemas.history import Failure, Json

__all__ = ["StepCommits"]

#: Transactions at a time. Where a flush of the disk takes milliseconds, 1, 4 and 8 of them did 220,
#: 380 and 550 steps a second; where it is quick, the 0.5 ms of psycopg for each step decide.
_CONNECTIONS_MAX: Final = 8
_CONNECT_TIMEOUT_S: Final = 2
#: How long a step waits for a connection: a burst of some thousand steps is done by then.
_TURN_TIMEOUT_S: Final = 10.0
#: A frozen server does not even refuse; statement_timeout ends slow statements at 30 s.
_ANSWER_TIMEOUT_S: Final = 40.0
#: Tries of a transaction that Postgres itself asks to begin again.
_TRIES: Final = 5

#: SQLSTATE classes and codes that pass, whatever the statement: lost connections, shutdowns, a full
#: disk, too many connections, an input or output that failed.
_OUTAGES: Final = ("08", "57P", "53100", "53300", "58", "25P03", "25P04", "40003")
#: Serialization failures and deadlocks.
_BEGIN_AGAIN: Final = (errors.SerializationFailure, errors.DeadlockDetected)
#: What psycopg and Postgres raise about SQL and its parameters.
_SQL_ERRORS: Final = (psycopg.Error, TypeError, ValueError)

_AS_STEPS: Final = sql.SQL("set local role {}").format(sql.Identifier(STEP_ROLE))

_Connection: TypeAlias = AsyncConnection[tuple[Any, ...]]
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(StepReturned)


class StepCommits(Pooled[_Connection]):
    """The SQL of steps, through a small pool of connections.

    It is a `StepDatabase` of `streams.engine.step_database`.

    Errors: StoreUnavailable from every method but `open` and `close`.
    """

    def __init__(self, dsn: str) -> None:
        super().__init__(
            AsyncConnectionPool(
                dsn,
                connection_class=AsyncConnection[tuple[Any, ...]],
                kwargs={
                    "autocommit": True,
                    "client_encoding": "utf8",
                    "connect_timeout": _CONNECT_TIMEOUT_S,
                    "application_name": "headwater-steps",
                },
                min_size=1,
                max_size=_CONNECTIONS_MAX,
                timeout=_TURN_TIMEOUT_S,
                reconnect_timeout=_TURN_TIMEOUT_S,
                configure=_configure,
                check=AsyncConnectionPool.check_connection,
                open=False,
            )
        )
        self._under_way: Counter[StepId] = Counter()

    async def claim(self, partition: int, epoch: int) -> list[StepCommit]:
        """Shuts out older epochs; gives what was committed and may not be in the log.

        Waits for transactions of older epochs that are under way.

        Errors: StoreUnavailable; Superseded, if a newer epoch has claimed the partition;
                UndecodableRecord, if a newer release has written a row.
        """
        with _edge("take the claim of a partition"):
            async with self._connection() as connection, asyncio.timeout(_ANSWER_TIMEOUT_S):
                await _check_role(connection)
                named = {"partition": partition, "epoch": epoch}
                claimed = await connection.execute(statement("claim_steps"), named)
                if await claimed.fetchone() is None:
                    raise _superseded(partition, epoch, "a later one")
                # A statement of its own: it sees what the claim has waited for.
                found = await connection.execute(statement("committed_steps"), named)
                rows = await found.fetchall()
        return [StepCommit(key, run_number, _decoded(row)) for key, run_number, row in rows]

    async def commit(
        self, partition: int, epoch: int, commit: StepCommit
    ) -> StepReturned | Failure:
        """Runs the statements of a step in one transaction with its commit row.

        Shape:  what is to be recorded of the step, when it took effect now or before (then it is
                what was returned before); otherwise why the step has failed.
        Errors: StoreUnavailable, when it did not take effect, and EffectUnknown, when nobody knows:
                ask again, it happens once; Superseded, when this epoch does not hold the partition.
        """
        refused = refusal(commit.returned)
        if refused is not None:
            return refused
        self._under_way[commit.id] += 1
        transaction = _Transaction(partition, epoch, commit)
        try:
            with _edge("run the SQL of a step"):
                return await self._committed(transaction)
        except RecordRefused as error:
            return Failure(DATA, error.message)
        except StoreUnavailable as error:
            if transaction.is_ending:
                raise EffectUnknown(error.message) from error
            raise
        finally:
            self._under_way[commit.id] -= 1
            if not self._under_way[commit.id]:
                del self._under_way[commit.id]

    async def forget(self, partition: int, steps: Collection[StepId]) -> None:
        """Removes the rows of steps whose end is acknowledged by the log.

        A step that is being committed once more, by an attempt that was given up, keeps its row
        until the next takeover: without it, that attempt would take effect, too.

        Errors: StoreUnavailable.
        """
        gone = [step for step in steps if step not in self._under_way]
        if not gone:
            return
        named = {
            "partition": partition,
            "instance_keys": [step.key for step in gone],
            "run_numbers": [step.run_number for step in gone],
            "step_keys": [step.step for step in gone],
        }
        with _edge("forget steps that are recorded"):
            async with self._connection() as connection, asyncio.timeout(_ANSWER_TIMEOUT_S):
                await connection.execute(statement("forget_steps"), named)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[_Connection]:
        async with self._pool.connection() as connection:
            try:
                yield connection
            except BaseException:
                # After a time-out or a cancellation the connection may be amid a transaction.
                await connection.close()
                raise

    async def _committed(self, transaction: "_Transaction") -> StepReturned | Failure:
        async with self._connection() as connection:
            tries = _TRIES
            while True:
                tries -= 1
                try:
                    async with connection.pipeline() as pipeline:
                        try:
                            return await transaction.run(connection, pipeline)
                        except (TimeoutError, asyncio.CancelledError):
                            # Else the pipeline waits for its last answer, however long.
                            await connection.close()
                            raise
                except _BEGIN_AGAIN as error:
                    await connection.rollback()
                    if not tries:
                        return _failure("its transaction", error)


class _Transaction:
    """A step's transaction, in pipeline mode: what is sent together costs one answer."""

    _connection: _Connection
    _pipeline: psycopg.AsyncPipeline

    def __init__(self, partition: int, epoch: int, commit: StepCommit) -> None:
        self._partition = partition
        self._epoch = epoch
        self._commit = commit
        #: Whether COMMIT was sent: without an answer nobody knows what came of it.
        self.is_ending = False

    async def run(
        self, connection: _Connection, pipeline: psycopg.AsyncPipeline
    ) -> StepReturned | Failure:
        """Tries it once."""
        self._connection, self._pipeline, self.is_ending = connection, pipeline, False
        returned = self._commit.returned
        stored = await self._begin()
        if stored is not None:
            await self._connection.rollback()
            return settled(_decoded(stored), returned)
        # Sent with the first statement.
        await self._connection.execute(_AS_STEPS, prepare=False)
        count = len(returned.statements)
        for number, (text, parameters) in enumerate(returned.statements, start=1):
            failure = await self._attempt(f"statement {number} of {count}", text, parameters)
            if failure is not None:
                return failure
            if self._connection.info.transaction_status != TransactionStatus.INTRANS:
                # The first words of each have been looked at, so this cannot be.
                raise InvariantViolation(f"expected a transaction still open after {text!r}")
        self.is_ending = True
        failure = await self._attempt("its statements", "commit", "[]")
        return failure or settled(returned, returned)

    async def _begin(self) -> bytes | None:
        """Begins; gives the step's row as it is stored, if its SQL took effect before."""
        named = {
            "partition": self._partition,
            "epoch": self._epoch,
            "instance_key": self._commit.key,
            "run_number": self._commit.run_number,
            "step_key": self._commit.id.step,
            "attempt": self._commit.returned.attempt,
            "returned": _ENCODER.encode(settled(self._commit.returned, self._commit.returned)),
        }
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            await self._connection.execute("begin", prepare=False)
            found = await self._connection.execute(statement("commit_step"), named)
            await self._pipeline.sync()
            row = await found.fetchone()
            assert row is not None  # noqa: S101, it has no from
            latest, written = row
            if latest != self._epoch:
                raise _superseded(self._partition, self._epoch, latest)
            if written:
                return None
            found = await self._connection.execute(statement("committed_step"), named)
            row = await found.fetchone()
            if row is None:
                raise StoreUnavailable(f"expected the row of step {self._commit.id}, found it gone")
            stored: bytes = row[0]
            return stored

    async def _attempt(self, what: str, text: str, parameters: Json) -> Failure | None:
        """Runs a statement of the step, or COMMIT; one that fails takes the transaction with it."""
        connection = self._connection
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            try:
                await connection.execute(text.encode(), _parameters(parameters), prepare=False)
                await self._pipeline.sync()
            except _BEGIN_AGAIN:
                raise
            except _SQL_ERRORS as error:
                if _passes(error):
                    raise
                await connection.rollback()
                return _failure(what, error)
        return None


def _parameters(text: Json) -> list[Any] | None:
    """What goes for `%s`; None if there is nothing: then `%` means itself, as psycopg has it.

    An object travels as its JSON text, which columns of type json, jsonb and text take.
    """
    values = json.loads(text)
    return [json.dumps(each) if isinstance(each, dict) else each for each in values] or None


def _decoded(row: bytes) -> StepReturned:
    try:
        return _DECODER.decode(row)
    except msgspec.MsgspecError as error:
        raise UndecodableRecord(
            f"expected a commit row of this release or an older one, found {error}"
        ) from error


def _superseded(partition: int, epoch: int, latest: object) -> Superseded:
    return Superseded(
        f"expected epoch {epoch} to hold partition {partition} in Postgres, found {latest}; usual "
        "cause: another worker has it now. If no worker can claim it, the topics were made anew "
        "under a database that knows the old ones: empty step_epochs and step_commits"
    )


def _passes(error: Exception) -> bool:
    """Whether the server, not the statement, is what went wrong."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate:
        return error.sqlstate.startswith(_OUTAGES)
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


def _failure(what: str, error: Exception) -> Failure:
    unique = isinstance(error, errors.UniqueViolation)
    found = str(error)
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        detail = f" ({error.diag.message_detail})" if error.diag.message_detail else ""
        found = f"{error.diag.message_primary}{detail}"
    name = UNIQUE_CONSTRAINT if unique else type(error).__name__
    return Failure(name, f"expected {what} to take effect, found: {found}")


@contextlib.contextmanager
def _edge(what: str) -> Iterator[None]:
    """Translates psycopg's errors; what is a fault of the installation may be mended meanwhile."""
    try:
        with store_edge(what):
            yield
    except psycopg.Error as error:
        raise StoreUnavailable(f"expected Postgres to {what}, found: {error}") from error


async def _check_role(connection: _Connection) -> None:
    found = await connection.execute(statement("may_run_steps"))
    if await found.fetchone() != (True,):
        raise StoreUnavailable(
            f"expected {connection.info.user} to be a member of the role {STEP_ROLE}, as which the "
            "SQL of steps runs, found that it is not; `headwater migrate` makes the role"
        )


async def _configure(connection: _Connection) -> None:
    await connection.execute(statement("step_session"))

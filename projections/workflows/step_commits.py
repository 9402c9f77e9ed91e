"""Run the SQL of steps in Postgres: one transaction per step, which takes effect once.

A transaction first locks the claim of its partition for share, which rejects superseded owners, and
inserts a commit row that names the step. Only after Postgres has confirmed both are the statements
sent, and only after the last of them COMMIT. So a delayed packet cannot take effect by itself. A
repeated request for the same step waits for an earlier transaction of unknown outcome and then
reads its commit row.

There are two logins. Claims use the login of the worker. Transactions of steps use one that can
access only the authors' schema (`roles`). It inserts the commit row through the function
`headwater_steps.commit_step`, which requires a ticket that only the claim has: authors' SQL can
call the function but cannot write commit rows of other steps. So Postgres enforces the limits of a
step, whatever its SQL is. After COMMIT, all changes of the session are reset.

Statements are sent one by one with the extended protocol, which accepts one statement at a time. A
step with a statement that begins with transaction control is rejected before anything is sent. The
command tag of each statement shows whether it ended the transaction.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import psycopg
from psycopg import AsyncConnection, errors
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from typing_extensions import override

from headwater.processors.runs.decisions import StepReturned
from headwater.processors.runs.step_commits import (
    EffectUnknown,
    StepCommit,
    StepId,
    refusal,
    settled,
    statement_name,
)
from headwater.projections.errors import RecordRefused, store_edge
from headwater.projections.postgres.connections import Pooled, own_dsn, schemas_of, with_settings
from headwater.projections.postgres.statements import statement
from headwater.schemas.errors import StoreUnavailable, Superseded, UndecodableRecord
from headwater.schemas.failures import DATA, STATEMENT_REFUSED, UNIQUE_CONSTRAINT
from headwater.schemas.history import Failure, Json

#: Concurrent transactions. With a disk flush of some milliseconds, 1, 4 and 8 of them ran 220, 380
#: and 550 steps per second; with a fast disk, the 0.5 ms of psycopg per step are the limit.
_CONNECTIONS_MAX: Final = 8
#: Claims are made one at a time.
_CLAIMING_MAX: Final = 2
_CONNECT_TIMEOUT_S: Final = 2
#: How long a step waits for a connection; a burst of some thousand steps takes less.
_TURN_TIMEOUT_S: Final = 10.0
#: For a frozen server that does not answer; statement_timeout cancels slow statements at 30 s.
_ANSWER_TIMEOUT_S: Final = 40.0
#: Attempts of a transaction that Postgres requests to be restarted.
_TRIES: Final = 5

#: SQLSTATE classes and codes of temporary errors that do not depend on the statement: lost
#: connections, shutdowns, a full disk, too many connections, I/O errors.
_OUTAGES: Final = ("08", "57P", "53100", "53300", "58", "25P03", "25P04", "40003")
#: Serialization failures and deadlocks.
_RESTARTABLE: Final = (errors.SerializationFailure, errors.DeadlockDetected)
#: Errors of psycopg and Postgres about SQL and its parameters.
_SQL_ERRORS: Final = (psycopg.Error, TypeError, ValueError)

#: Explicit, because authors' SQL can change the role's defaults.
_BEGIN: Final = "begin isolation level read committed read write"
#: Settings of step sessions; a reset returns to them. A worker that freezes in a transaction, or
#: whose machine is lost, must not block its successor.
_SESSION: Final = {
    "idle_in_transaction_session_timeout": "10s",
    "statement_timeout": "30s",
    "client_connection_check_interval": "2s",
}
#: Command tags of statements that end or split a transaction.
_TRANSACTION_TAGS: Final = frozenset(
    {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "PREPARE TRANSACTION"}
)

_Connection: TypeAlias = AsyncConnection[tuple[Any, ...]]
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(StepReturned)


class StepCommits(Pooled[_Connection]):
    """Runs the SQL of steps with a small pool of connections.

    Implements `StepDatabase` of `streams.engine.steps_with_sql`. All methods except `open` and
    `close` raise StoreUnavailable.
    """

    def __init__(self, dsn: str, steps_dsn: str = "") -> None:
        """Connect when opened.

        Args:
            dsn: Login of the worker, which claims partitions.
            steps_dsn: Login of steps; empty uses the one created by `headwater migrate`.
        """
        super().__init__(_pool(own_dsn(dsn), _CLAIMING_MAX))
        self._dsn, self._steps_dsn = dsn, steps_dsn
        self._schemas = schemas_of(dsn)
        self._calls = _Calls(
            self._schemas.named_in(statement("commit_step")),
            self._schemas.named_in(statement("reset_step_session")),
        )
        self._steps: AsyncConnectionPool[_Connection] | None = None
        #: DSN of that pool.
        self._login = ""
        #: Tickets that prove this process holds a claim, by partition.
        self._tickets: dict[int, object] = {}
        self._under_way: Counter[StepId] = Counter()

    @override
    async def close(self) -> None:
        """Close all connections."""
        await super().close()
        await self._close_steps()

    async def claim(self, partition: int, epoch: int) -> list[StepCommit]:
        """Fence older epochs, after waiting for their open transactions.

        Returns:
            Commits that may be missing in the log.

        Raises:
            StoreUnavailable: Postgres does not answer.
            Superseded: A newer epoch has claimed the partition.
            UndecodableRecord: A newer release has written a row.
        """
        with _edge("claim a partition"):
            async with _of(self._pool) as connection, asyncio.timeout(_ANSWER_TIMEOUT_S):
                await self._steps_pool(connection)
                parameters = {"partition": partition, "epoch": epoch}
                cursor = await connection.execute(statement("claim_steps"), parameters)
                row = await cursor.fetchone()
                if row is None:
                    raise _superseded(partition, epoch, "a later one")
                (self._tickets[partition],) = row
                # A separate statement sees the commits that the claim has waited for.
                cursor = await connection.execute(statement("committed_steps"), parameters)
                rows = await cursor.fetchall()
        return [StepCommit(key, run_number, _decoded(row)) for key, run_number, row in rows]

    async def commit(
        self, partition: int, epoch: int, commit: StepCommit
    ) -> StepReturned | Failure:
        """Run the statements of a step in one transaction with its commit row.

        Returns:
            The result to record, if the step took effect now or earlier (then the earlier result);
                otherwise the failure of the step.

        Raises:
            StoreUnavailable: It did not take effect; commit it again.
            EffectUnknown: It may have taken effect; commit it again, it takes effect once.
            Superseded: This epoch does not hold the partition.
        """
        failure = refusal(commit.returned)
        if failure is not None:
            return failure
        self._under_way[commit.id] += 1
        ticket = self._tickets.get(partition)
        transaction = _Transaction(self._calls, partition, epoch, ticket, commit)
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
        """Delete the commit rows of steps whose end is acknowledged by the log.

        A step that is being committed again for an abandoned attempt keeps its row until the next
        claim: without it, that attempt would take effect, too.

        Raises:
            StoreUnavailable: Postgres does not answer.
        """
        finished = [step for step in steps if step not in self._under_way]
        if not finished:
            return
        parameters = {
            "partition": partition,
            "instance_keys": [step.key for step in finished],
            "run_numbers": [step.run_number for step in finished],
            "step_keys": [step.step for step in finished],
        }
        with _edge("delete the rows of recorded steps"):
            async with _of(self._pool) as connection, asyncio.timeout(_ANSWER_TIMEOUT_S):
                await connection.execute(statement("forget_steps"), parameters)

    # -- the login of steps

    async def _steps_pool(self, connection: _Connection) -> AsyncConnectionPool[_Connection]:
        """Return a pool with the current login of steps."""
        steps_dsn = self._steps_dsn or await self._dsn_of_login(connection)
        if self._steps is None or steps_dsn != self._login:
            await self._close_steps()
            self._login = steps_dsn
            self._steps = _pool(
                with_settings(steps_dsn, search_path=self._schemas.authors, **_SESSION),
                _CONNECTIONS_MAX,
            )
            await self._steps.open(wait=False)
        return self._steps

    async def _dsn_of_login(self, connection: _Connection) -> str:
        try:
            cursor = await connection.execute(statement("step_login"))
            row = await cursor.fetchone()
        except errors.UndefinedTable:
            row = None
        if row is None:
            raise StoreUnavailable(
                "expected a login for the SQL of steps, found none in "
                f"{self._schemas.tables}.step_login; "
                "`headwater migrate` creates it, or reports why it cannot"
            )
        return make_conninfo(self._dsn, user=row[0], password=row[1])

    async def _renew(self, steps: AsyncConnectionPool[_Connection]) -> None:
        """Restore the login's password, which the SQL of a step may have changed."""
        if self._steps is not steps:
            return
        self._steps = None
        if not self._steps_dsn:
            with contextlib.suppress(psycopg.Error, PoolTimeout):
                async with _of(self._pool) as connection:
                    await connection.execute(statement("make_step_login"))
        await steps.close()

    async def _close_steps(self) -> None:
        steps, self._steps = self._steps, None
        if steps is not None:
            await steps.close()

    async def _committed(self, transaction: "_Transaction") -> StepReturned | Failure:
        steps = self._steps
        if steps is None:
            async with _of(self._pool) as connection:
                steps = await self._steps_pool(connection)
        try:
            return await self._committed_by(steps, transaction)
        except PoolTimeout:
            await self._renew(steps)
            raise

    async def _committed_by(
        self, steps: AsyncConnectionPool[_Connection], transaction: "_Transaction"
    ) -> StepReturned | Failure:
        async with _of(steps) as connection:
            tries = _TRIES
            while True:
                tries -= 1
                try:
                    async with connection.pipeline() as pipeline:
                        try:
                            return await transaction.run(connection, pipeline)
                        except (TimeoutError, asyncio.CancelledError):
                            # Otherwise the pipeline waits for its last response indefinitely.
                            await connection.close()
                            raise
                except _RESTARTABLE as error:
                    await connection.rollback()
                    await connection.execute("discard all")
                    if not tries:
                        return _failure("its transaction", error)


class _Calls(NamedTuple):
    """The statements by which steps call functions of Headwater."""

    commit_step: bytes
    reset_session: bytes


class _Transaction:
    """A step's transaction in pipeline mode: statements sent together take one round trip."""

    _connection: _Connection
    _pipeline: psycopg.AsyncPipeline

    def __init__(
        self, calls: _Calls, partition: int, epoch: int, ticket: object, commit: StepCommit
    ) -> None:
        self._calls = calls
        self._partition = partition
        self._epoch = epoch
        self._ticket = ticket
        self._commit = commit
        self._is_discarded = False
        #: Whether COMMIT was sent: without a response the outcome is unknown.
        self.is_ending = False

    async def run(
        self, connection: _Connection, pipeline: psycopg.AsyncPipeline
    ) -> StepReturned | Failure:
        """Run the transaction once. The session is clean afterwards."""
        self._connection, self._pipeline = connection, pipeline
        self.is_ending = self._is_discarded = False
        result = await self._run()
        if not self._is_discarded:
            await connection.execute("discard all", prepare=False)
        return result

    async def _run(self) -> StepReturned | Failure:
        returned = self._commit.returned
        stored = await self._begin()
        if stored is not None:
            await self._connection.rollback()
            return settled(_decoded(stored), returned)
        for number, (text, parameters) in enumerate(returned.statements, start=1):
            failure = await self._attempt(statement_name(returned, number), text, parameters)
            if failure is not None:
                return failure
        self.is_ending = True
        failure = await self._end()
        return failure or settled(returned, returned)

    async def _begin(self) -> bytes | None:
        """Begin. Return the stored result if the step's SQL took effect earlier."""
        parameters = {
            "partition": self._partition,
            "epoch": self._epoch,
            "ticket": self._ticket,
            "instance_key": self._commit.key,
            "run_number": self._commit.run_number,
            "step_key": self._commit.id.step,
            "attempt": self._commit.returned.attempt,
            "returned": _ENCODER.encode(settled(self._commit.returned, self._commit.returned)),
        }
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            await self._connection.execute(_BEGIN, prepare=False)
            cursor = await self._connection.execute(
                self._calls.commit_step, parameters, prepare=False
            )
            await self._pipeline.sync()
            row = await cursor.fetchone()
        assert row is not None  # noqa: S101, a function returns one
        latest, is_held, is_written, stored = row
        if not is_held:
            raise _superseded(self._partition, self._epoch, latest)
        if is_written:
            return None
        if stored is None:
            raise StoreUnavailable(f"expected the row of step {self._commit.id}, found none")
        before: bytes = stored
        return before

    async def _attempt(self, what: str, text: str, parameters: Json) -> Failure | None:
        """Run a statement of the step. If it fails, the transaction is rolled back."""
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            try:
                cursor = await self._connection.execute(
                    text.encode(), _parameters(parameters), prepare=False
                )
                await self._pipeline.sync()
            except _SQL_ERRORS as error:
                return await self._failed(what, error)
        is_open = self._connection.info.transaction_status == TransactionStatus.INTRANS
        if is_open and cursor.statusmessage not in _TRANSACTION_TAGS:
            return None
        await self._connection.rollback()
        return Failure(
            STATEMENT_REFUSED,
            f"expected {what} to leave the step's transaction open, found {cursor.statusmessage}",
        )

    async def _end(self) -> Failure | None:
        """Commit, and reset what the step has changed in the session."""
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            commit = self._connection.cursor()
            try:
                await commit.execute("commit", prepare=False)
                await self._connection.execute(self._calls.reset_session, prepare=False)
                await self._pipeline.sync()
            except _SQL_ERRORS as error:
                if commit.statusmessage == "COMMIT":
                    return None
                return await self._failed("its statements", error)
        self._is_discarded = True
        return None

    async def _failed(self, what: str, error: Exception) -> Failure:
        """Roll back. Raise temporary errors, return permanent ones."""
        if isinstance(error, _RESTARTABLE) or _is_temporary(error):
            raise error
        # Statements sent after the failed one report PipelineAborted, which must not hide the
        # original error.
        with contextlib.suppress(errors.PipelineAborted):
            await self._pipeline.sync()
        await self._connection.rollback()
        return _failure(what, error)


def _parameters(text: Json) -> list[Any] | dict[str, Any] | None:
    """Return parameters for psycopg: a list for `%s`, or a dict for `%(name)s`.

    Return None without parameters: psycopg then treats `%` literally. An object is sent as JSON
    text, which columns of type json, jsonb and text accept.
    """
    values = json.loads(text)
    if isinstance(values, dict):
        return {name: _parameter(value) for name, value in values.items()} or None
    return [_parameter(value) for value in values] or None


def _parameter(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict) else value


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
        "cause: another worker holds it now. If no worker can claim it, the topics were recreated "
        "for a database that knows the old ones: empty step_epochs and step_commits"
    )


def _is_temporary(error: Exception) -> bool:
    """Whether the server, not the statement, caused the error."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate:
        return error.sqlstate.startswith(_OUTAGES)
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


def _failure(what: str, error: Exception) -> Failure:
    is_unique_violation = isinstance(error, errors.UniqueViolation)
    reason = str(error)
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        detail = f" ({error.diag.message_detail})" if error.diag.message_detail else ""
        reason = f"{error.diag.message_primary}{detail}"
    name = UNIQUE_CONSTRAINT if is_unique_violation else type(error).__name__
    return Failure(name, f"expected {what} to take effect, found: {reason}")


@contextlib.contextmanager
def _edge(what: str) -> Iterator[None]:
    """Translate errors of psycopg. Errors of the installation are retried: it may be repaired."""
    try:
        with store_edge(what):
            yield
    except psycopg.Error as error:
        raise StoreUnavailable(f"expected Postgres to {what}, found: {error}") from error


@contextlib.asynccontextmanager
async def _of(pool: AsyncConnectionPool[_Connection]) -> AsyncIterator[_Connection]:
    async with pool.connection() as connection:
        try:
            yield connection
        except BaseException:
            # After a timeout or cancellation the connection may be in a transaction.
            await connection.close()
            raise


def _pool(dsn: str, size_max: int) -> AsyncConnectionPool[_Connection]:
    return AsyncConnectionPool(
        dsn,
        connection_class=AsyncConnection[tuple[Any, ...]],
        kwargs={
            "autocommit": True,
            "client_encoding": "utf8",
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "application_name": "headwater-steps",
        },
        min_size=1,
        max_size=size_max,
        timeout=_TURN_TIMEOUT_S,
        reconnect_timeout=_TURN_TIMEOUT_S,
        check=AsyncConnectionPool.check_connection,
        open=False,
    )

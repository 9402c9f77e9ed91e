"""The SQL of steps on Postgres: each step one transaction, which takes effect once.

Theory of operation: a transaction first locks the claim of its partition for share, which refuses
it to superseded owners, and writes a row that names the step. Only when Postgres has answered to
both are the statements sent, and only after the last of them COMMIT. So whatever is late on the
wire cannot take effect by itself; and who asks for the same step again waits for a transaction
whose end nobody knows, and then finds its row.

Two logins: claims are made with that of the worker, and the transactions of steps with one that
reaches the schema of authors alone (`step_role`). It writes the row of its step through the
function `headwater_steps.commit_step`, which takes a ticket that only the claim has: SQL of authors
can call the function, and cannot write rows of other steps. So Postgres refuses what a step may not
do, whatever its SQL says. With the COMMIT, all that it changed in the session is undone.

Statements are sent one by one and by the extended protocol, which takes one statement at a time. A
step whose first words would end the transaction is refused before anything is sent; what Postgres
says of each statement shows whether one did.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any, Final, TypeAlias

import msgspec
import psycopg
from psycopg import AsyncConnection, errors
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from typing_extensions import override

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
from headwater.projections.postgres.schemas import AUTHORS, own_dsn, with_settings
from headwater.projections.postgres.statements import statement
from headwater.schemas.errors import (
    StoreUnavailable,
    Superseded,
    UndecodableRecord,
)
from headwater.schemas.failures import DATA, STATEMENT_REFUSED, UNIQUE_CONSTRAINT
from headwater.schemas.history import Failure, Json

__all__ = ["StepCommits"]

#: Transactions at a time. Where a flush of the disk takes milliseconds, 1, 4 and 8 of them did 220,
#: 380 and 550 steps a second; where it is quick, the 0.5 ms of psycopg for each step decide.
_CONNECTIONS_MAX: Final = 8
#: Claims are made one by one.
_CLAIMING_MAX: Final = 2
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

#: A role's own defaults may be others: authors' SQL can set them.
_BEGIN: Final = "begin isolation level read committed read write"
#: Undoes what a step has changed in its session.
_RESET: Final = "select headwater_steps.reset_session()"
#: What sessions of steps have; a reset returns to it. A worker that freezes in a transaction
#: must not keep its successor waiting, nor one whose machine is gone.
_SESSION: Final = {
    "idle_in_transaction_session_timeout": "10s",
    "statement_timeout": "30s",
    "client_connection_check_interval": "2s",
}
#: What Postgres reports of statements that end or divide a transaction.
_TRANSACTION_TAGS: Final = frozenset(
    {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "PREPARE TRANSACTION"}
)

_Connection: TypeAlias = AsyncConnection[tuple[Any, ...]]
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(StepReturned)


class StepCommits(Pooled[_Connection]):
    """The SQL of steps, through a small pool of connections.

    It is a `StepDatabase` of `streams.engine.step_database`.

    Errors: StoreUnavailable from every method but `open` and `close`.
    """

    def __init__(self, dsn: str, steps_dsn: str = "") -> None:
        """Connect when it is opened.

        Args:
            dsn: The login of the worker, which claims partitions.
            steps_dsn: The login of steps; empty takes the one that `headwater migrate` has made.
        """
        super().__init__(_pool(own_dsn(dsn), _CLAIMING_MAX))
        self._dsn, self._steps_dsn = dsn, steps_dsn
        self._steps: AsyncConnectionPool[_Connection] | None = None
        #: The login of that pool.
        self._login = ""
        #: What shows that a claim is ours, by partition.
        self._tickets: dict[int, object] = {}
        self._under_way: Counter[StepId] = Counter()

    @override
    async def close(self) -> None:
        """Closes all connections."""
        await super().close()
        await self._close_steps()

    async def claim(self, partition: int, epoch: int) -> list[StepCommit]:
        """Shut out older epochs, waiting for transactions of theirs that are under way.

        Returns:
            What was committed and may not be in the log.

        Raises:
            StoreUnavailable: Postgres does not answer.
            Superseded: A newer epoch has claimed the partition.
            UndecodableRecord: A newer release has written a row.
        """
        with _edge("take the claim of a partition"):
            async with _of(self._pool) as connection, asyncio.timeout(_ANSWER_TIMEOUT_S):
                await self._log_in(connection)
                named = {"partition": partition, "epoch": epoch}
                claimed = await connection.execute(statement("claim_steps"), named)
                row = await claimed.fetchone()
                if row is None:
                    raise _superseded(partition, epoch, "a later one")
                (self._tickets[partition],) = row
                # A statement of its own: it sees what the claim has waited for.
                found = await connection.execute(statement("committed_steps"), named)
                rows = await found.fetchall()
        return [StepCommit(key, run_number, _decoded(row)) for key, run_number, row in rows]

    async def commit(
        self, partition: int, epoch: int, commit: StepCommit
    ) -> StepReturned | Failure:
        """Run the statements of a step in one transaction with its commit row.

        Returns:
            The result to record, if the step took effect now or before (then the result of before);
            otherwise why the step has failed.

        Raises:
            StoreUnavailable: It did not take effect; commit it again.
            EffectUnknown: It may have taken effect; commit it again, it takes effect once.
            Superseded: This epoch does not hold the partition.
        """
        refused = refusal(commit.returned)
        if refused is not None:
            return refused
        self._under_way[commit.id] += 1
        transaction = _Transaction(partition, epoch, self._tickets.get(partition), commit)
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
        """Remove the rows of steps whose end is acknowledged by the log.

        A step that is being committed again, by an attempt that was given up, keeps its row until
        the next takeover: without it, that attempt would take effect, too.

        Raises:
            StoreUnavailable: Postgres does not answer.
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
            async with _of(self._pool) as connection, asyncio.timeout(_ANSWER_TIMEOUT_S):
                await connection.execute(statement("forget_steps"), named)

    # -- the login of steps

    async def _log_in(self, connection: _Connection) -> AsyncConnectionPool[_Connection]:
        """Return the pool of the login of steps, as the database names it now."""
        steps_dsn = self._steps_dsn or await self._dsn_of_login(connection)
        if self._steps is None or steps_dsn != self._login:
            await self._close_steps()
            self._login = steps_dsn
            self._steps = _pool(
                with_settings(steps_dsn, search_path=AUTHORS, **_SESSION), _CONNECTIONS_MAX
            )
            await self._steps.open(wait=False)
        return self._steps

    async def _dsn_of_login(self, connection: _Connection) -> str:
        try:
            found = await connection.execute(statement("step_login"))
            row = await found.fetchone()
        except errors.UndefinedTable:
            row = None
        if row is None:
            raise StoreUnavailable(
                "expected a login for the SQL of steps, found none in headwater.step_login; "
                "`headwater migrate` makes it, or says why it may not"
            )
        return make_conninfo(self._dsn, user=row[0], password=row[1])

    async def _renew(self, steps: AsyncConnectionPool[_Connection]) -> None:
        """Give the login its password again, which SQL of a step may have changed."""
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
                steps = await self._log_in(connection)
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
                            # Else the pipeline waits for its last answer, however long.
                            await connection.close()
                            raise
                except _BEGIN_AGAIN as error:
                    await connection.rollback()
                    await connection.execute("discard all")
                    if not tries:
                        return _failure("its transaction", error)


class _Transaction:
    """A step's transaction, in pipeline mode: what is sent together costs one answer."""

    _connection: _Connection
    _pipeline: psycopg.AsyncPipeline

    def __init__(self, partition: int, epoch: int, ticket: object, commit: StepCommit) -> None:
        self._partition = partition
        self._epoch = epoch
        self._ticket = ticket
        self._commit = commit
        self._is_discarded = False
        #: Whether COMMIT was sent: without an answer nobody knows what came of it.
        self.is_ending = False

    async def run(
        self, connection: _Connection, pipeline: psycopg.AsyncPipeline
    ) -> StepReturned | Failure:
        """Tries it once; the session is then as it was before."""
        self._connection, self._pipeline = connection, pipeline
        self.is_ending = self._is_discarded = False
        done = await self._run()
        if not self._is_discarded:
            await connection.execute("discard all", prepare=False)
        return done

    async def _run(self) -> StepReturned | Failure:
        returned = self._commit.returned
        stored = await self._begin()
        if stored is not None:
            await self._connection.rollback()
            return settled(_decoded(stored), returned)
        count = len(returned.statements)
        for number, (text, parameters) in enumerate(returned.statements, start=1):
            failure = await self._attempt(f"statement {number} of {count}", text, parameters)
            if failure is not None:
                return failure
        self.is_ending = True
        failure = await self._end()
        return failure or settled(returned, returned)

    async def _begin(self) -> bytes | None:
        """Begins; gives the step's row as it is stored, if its SQL took effect before."""
        named = {
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
            found = await self._connection.execute(statement("commit_step"), named, prepare=False)
            await self._pipeline.sync()
            row = await found.fetchone()
        assert row is not None  # noqa: S101, a function returns one
        latest, is_held, is_written, stored = row
        if not is_held:
            raise _superseded(self._partition, self._epoch, latest)
        if is_written:
            return None
        if stored is None:
            raise StoreUnavailable(f"expected the row of step {self._commit.id}, found it gone")
        before: bytes = stored
        return before

    async def _attempt(self, what: str, text: str, parameters: Json) -> Failure | None:
        """Runs a statement of the step; one that fails takes the transaction with it."""
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            try:
                done = await self._connection.execute(
                    text.encode(), _parameters(parameters), prepare=False
                )
                await self._pipeline.sync()
            except _SQL_ERRORS as error:
                return await self._failed(what, error)
        is_open = self._connection.info.transaction_status == TransactionStatus.INTRANS
        if is_open and done.statusmessage not in _TRANSACTION_TAGS:
            return None
        await self._connection.rollback()
        return Failure(
            STATEMENT_REFUSED,
            f"expected {what} to leave the step's transaction open, found {done.statusmessage}",
        )

    async def _end(self) -> Failure | None:
        """Commits, and takes back what the step has changed in the session."""
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            commit = self._connection.cursor()
            try:
                await commit.execute("commit", prepare=False)
                await self._connection.execute(_RESET, prepare=False)
                await self._pipeline.sync()
            except _SQL_ERRORS as error:
                if commit.statusmessage == "COMMIT":
                    return None
                return await self._failed("its statements", error)
        self._is_discarded = True
        return None

    async def _failed(self, what: str, error: Exception) -> Failure:
        """Roll back; raise what another try may pass, return what it would not."""
        if isinstance(error, _BEGIN_AGAIN) or _passes(error):
            raise error
        # What was sent after the statement that failed is answered with this error, which must not
        # take the place of the other one.
        with contextlib.suppress(errors.PipelineAborted):
            await self._pipeline.sync()
        await self._connection.rollback()
        return _failure(what, error)


def _parameters(text: Json) -> list[Any] | dict[str, Any] | None:
    """Return parameters for psycopg: a list for `%s`, or a dict for `%(name)s`.

    None if there is nothing: then `%` means itself, as psycopg has it. A parameter that is an
    object is sent as its JSON text, which columns of type json, jsonb and text take.
    """
    values = json.loads(text)
    if isinstance(values, dict):
        return {name: _parameter(each) for name, each in values.items()} or None
    return [_parameter(each) for each in values] or None


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


@contextlib.asynccontextmanager
async def _of(pool: AsyncConnectionPool[_Connection]) -> AsyncIterator[_Connection]:
    async with pool.connection() as connection:
        try:
            yield connection
        except BaseException:
            # After a time-out or a cancellation the connection may be amid a transaction.
            await connection.close()
            raise


def _pool(dsn: str, most: int) -> AsyncConnectionPool[_Connection]:
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
        max_size=most,
        timeout=_TURN_TIMEOUT_S,
        reconnect_timeout=_TURN_TIMEOUT_S,
        check=AsyncConnectionPool.check_connection,
        open=False,
    )

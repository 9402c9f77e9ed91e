"""State of a graph run: its live tokens, forks, branches, joins and context, and its bytes.

Ended tokens and forks are not kept: the context and the history hold what remains of them. The
number of branches of a fork that can still arrive is counted, so an arrival costs the same for any
number of siblings.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from headwater.processors.graph.planning import Frames, InnerPath, Taken, TokenStatus
from headwater.processors.runs.state import Received, Run
from headwater.schemas.history import (
    BranchChanged,
    Child,
    ContextChanged,
    Failure,
    FanInActivated,
    Json,
    RunEvent,
    TasksDispatched,
    TokensCreated,
)
from headwater.schemas.statuses import RunStatus

#: Kind of these runs.
KIND: Final = "graph"

#: Key of the branch outside of all forks.
OUTSIDE: Final = ""
#: Key of the timeout of the whole run among the times of its tokens and joins.
RUN_TIMEOUT_KEY: Final = "run"

_IN_FLIGHT: Final = frozenset({TokenStatus.DISPATCHED, TokenStatus.EXECUTING})


#: Maximum attempts of one run in flight at hosts.
IN_FLIGHT_MAX: Final = 1_000
#: Maximum jobs of one run that are open.
JOBS_MAX: Final = 1_000
#: Tokens that are dispatched together, in one event and message, when more wait than may be
#: in flight.
_TOGETHER: Final = 100


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Lease of a worker on a job. It never extends beyond `ends_at_ms`, the end of the attempt."""

    worker: str
    until_ms: int
    ends_at_ms: int | None = None


class EndedJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How an attempt of a job ended: a digest of what its worker sent."""

    attempt: int
    digest: str


class Held(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a node ended while its run was paused; it takes effect after the pause.

    Attributes:
        event: The event that ended its wait.
        retry_at_ms: When a failed attempt is retried; None if it is not.
    """

    at_ms: int
    result: Json | None = None
    failure: Failure | None = None
    retry_at_ms: int | None = None
    timed_out: bool = False
    event: Received | None = None


class LiveToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token that has not ended.

    Attributes:
        node: `node` to `total` are as in `planning.Token`.
        taken: How often it took transitions since its innermost fork began; see `taken_of`.
        transition: Transition by which the token arrived.
        attempts: Failed attempts.
        lost: Failed attempts with an expired lease.
        at_ms: When its task is retried, its wait ends, or its child times out.
        job: Idempotency token of a task for external workers, from its first dispatch.
        lease: Lease of the worker that executes the job.
        external: Whether its task is for external workers.
        failure: Error of the node before, if an error transition led here.
        failed: Of a token that continues from a join: branches of the fork that failed.
        inner: Of a token that left nested forks for the join of an outer one: its branches there.
        output: Output of the innermost of those branches.
        times: Of a token that waits at a node for tokens by its other transitions: how often it
            took its own.
    """

    number: int
    node: str
    path: str
    parent: int | None
    transition: str | None
    fork: str | None
    group: str | None
    branch: int
    total: int
    taken: Frames
    status: TokenStatus = TokenStatus.PENDING
    attempts: int = 0
    input: Json | None = None
    at_ms: int | None = None
    child: Child | None = None
    job: str | None = None
    lease: Lease | None = None
    lost: int = 0
    external: bool = False
    failure: Failure | None = None
    failed: int | None = None
    inner: InnerPath = ()
    output: dict[str, Any] | None = None
    times: int | None = None

    @property
    def is_at_join(self) -> bool:
        """Whether it waits at a join of its fork."""
        return self.status is TokenStatus.WAITING_FOR_SIBLINGS and self.times is None

    @property
    def in_flight(self) -> bool:
        """Whether an attempt of its task is in flight."""
        return self.status in _IN_FLIGHT

    @property
    def is_undispatched(self) -> bool:
        """Whether it has not begun at its node, or is retried, and no time has to pass before."""
        return self.status is TokenStatus.PENDING and self.at_ms is None

    @property
    def waits_for_others(self) -> bool:
        """Whether a child, a worker or an event can end the wait before its time."""
        return (
            self.child is not None
            or self.lease is not None
            or self.status is TokenStatus.WAITING_FOR_EVENT
        )

    @property
    def branch_key(self) -> str:
        """Key of its branch; what is outside of all forks is a branch, too."""
        return OUTSIDE if self.fork is None else f"{self.fork}/{self.branch}"


class LiveFork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fork that has live tokens.

    Attributes:
        origin: Token at which the fork began.
        live: Branches that can still arrive at a join.
        waiting: Tokens that wait at joins.
        meetings: Nodes of joins where tokens wait.
        failed: Branches that failed.
        failure: Error of the first of them.
    """

    group: str | None
    total: int
    origin: LiveToken
    live: int = 0
    waiting: int = 0
    meetings: tuple[str, ...] = ()
    failed: int = 0
    failure: Failure | None = None


class LiveBranch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A branch of a fork, or what is outside of all forks.

    Attributes:
        active: Tokens that do not wait at a join of the fork, plus nested forks.
        held: Of those tokens, the ones that wait at nodes for tokens by their other transitions.
        arrived: Nodes of joins where the branch waits.
        item_name: Name of the item in expressions.
        item: Item of the branch in a `foreach`.
        tokens: Its live tokens, without those of nested forks; kept only within forks.
        forks: Nested forks that began in it; kept only within forks.
        failed: Whether it failed.
    """

    active: int = 0
    held: int = 0
    arrived: tuple[str, ...] = ()
    output: dict[str, Any] = {}
    item_name: str | None = None
    item: Any = None
    tokens: tuple[int, ...] = ()
    forks: tuple[str, ...] = ()
    failed: bool = False


class Meeting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of a fork that wait at a join.

    Attributes:
        transition: Transition by which the first token arrived.
        tokens: Waiting tokens.
        branches: Branches of those tokens.
        settled: Of those branches, the ones that can bring no more tokens.
        until_ms: Time of the timeout, Unix milliseconds.
    """

    transition: str
    tokens: int = 0
    branches: int = 0
    settled: int = 0
    until_ms: int | None = None


class GraphRun(Run, kw_only=True, dict=True):
    """A run of a graph.

    Attributes:
        document: The definition as JSON text.
        created: Number of the next token.
        undispatched: Number of the first token that waits for its dispatch, jobs aside.
        undispatched_job: The same of tokens for external workers.
        in_flight: Attempts in flight.
        jobs: Attempts in flight that are for external workers, leased or not.
        ended_jobs: The jobs that ended last, by token.
        branches: Branches by `branch_key`.
        meetings: Joins by `meeting_key`.
        gatherings: Tokens that wait at nodes for tokens by their other transitions, by
            `gathering_key`.
        times: When time moves a waiting token or join, by key.
        latest: Token that the next tokens follow: the one that ended last with tokens after it, or
            the one at which the fork began that was joined last.
        undecided: Number of the last run of the instance that failed because it could not be
            decided what follows `latest`.
        timeout_ms: How long the run may take.
        waits: Tokens that wait for an event, by its type, or for a time (None), the oldest first.
        held: Outcomes that take effect after a pause, by token, in the order of arrival.
    """

    document: Json = "{}"
    input: Any = None
    shared: dict[str, Any] = msgspec.field(default_factory=dict)
    results: dict[str, Any] = msgspec.field(default_factory=dict)
    created: int = 0
    undispatched: int = 0
    in_flight: int = 0
    tokens: dict[int, LiveToken] = msgspec.field(default_factory=dict)
    forks: dict[str, LiveFork] = msgspec.field(default_factory=dict)
    branches: dict[str, LiveBranch] = msgspec.field(default_factory=dict)
    meetings: dict[str, Meeting] = msgspec.field(default_factory=dict)
    gatherings: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    times: dict[str, int] = msgspec.field(default_factory=dict)
    latest: LiveToken | None = None
    jobs: int = 0
    ended_jobs: dict[int, EndedJob] = msgspec.field(default_factory=dict)
    undispatched_job: int = 0
    timeout_ms: int | None = None
    waits: dict[int, str | None] = msgspec.field(default_factory=dict)
    held: dict[int, Held] = msgspec.field(default_factory=dict)
    undecided: int | None = None

    @property
    def undecided_token(self) -> LiveToken | None:
        """The token that has completed and with whose transitions an errored run failed."""
        return self.latest if self.undecided == self.run_number else None

    @property
    def holds_outcomes(self) -> bool:
        """Whether outcomes are held: it is paused, or still handles what happened meanwhile."""
        return self.status is RunStatus.PAUSED or bool(self.held)

    @property
    def may_dispatch_tasks(self) -> bool:
        """Whether tokens wait that may be dispatched, and are not for external workers."""
        running = self.in_flight - self.jobs
        return self.undispatched < self.created and running <= IN_FLIGHT_MAX - _TOGETHER

    @property
    def may_dispatch_jobs(self) -> bool:
        """Whether tokens for external workers wait that may be dispatched."""
        return self.undispatched_job < self.created and self.jobs < JOBS_MAX

    @property
    def has_backlog(self) -> bool:
        """Whether a decision has left something that the next one can do at once."""
        return bool(self.held) or self.may_dispatch_tasks or self.may_dispatch_jobs

    def token_of(self, key: str) -> LiveToken | None:
        """Return the token with this number; None if it has ended, or the key is not a token's."""
        return self.tokens.get(int(key)) if key.isascii() and key.isdecimal() else None


def taken_of(run: GraphRun, token: LiveToken) -> Taken:
    """Return how often a token, or its ancestors, took each transition."""
    fork = token.fork
    if fork is None:
        return Taken(token.taken)
    levels = [token.taken]
    while fork is not None:
        origin = run.forks[fork].origin
        levels.append(origin.taken)
        fork = origin.fork
    taken = Taken(levels.pop())
    while levels:
        taken = Taken(levels.pop(), taken)
    return taken


def digest_of_end(*parts: str) -> str:
    """Return a digest of how a worker ended a job, to recognize a repeated request."""
    return sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:16]


def branch_key(fork: str, branch: int) -> str:
    """Return the key of a branch."""
    return f"{fork}/{branch}"


def gathering_key(token: LiveToken, times: int) -> str:
    """Return the key of a node that waits for tokens, in one branch and round."""
    return f"{meeting_key(token.branch_key, token.node)}/{times}"


def meeting_key(fork: str, node: str) -> str:
    """Return the key of a join: a slash in the name of its node is escaped as `~1`."""
    if "/" in node or "~" in node:
        node = node.replace("~", "~0").replace("/", "~1")
    return f"{fork}/{node}"


def parse_meeting_key(key: str) -> tuple[str, str]:
    """Return the fork and the node of a join's key."""
    fork, _, node = key.rpartition("/")
    return fork, node.replace("~1", "/").replace("~0", "~")


def rename_joins(run: GraphRun, renamed: Mapping[str, str]) -> None:
    """Give the joins of a run the new names of their nodes, after its tokens."""

    def rename(nodes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(renamed.get(node, node) for node in nodes)

    for name, fork in list(run.forks.items()):
        run.forks[name] = msgspec.structs.replace(fork, meetings=rename(fork.meetings))
    for key, branch in list(run.branches.items()):
        if branch.arrived:
            arrived = rename(branch.arrived)
            run.branches[key] = msgspec.structs.replace(branch, arrived=arrived)
    moved = [(key, *parse_meeting_key(key)) for key in run.meetings]
    keys = {key: meeting_key(fork, renamed.get(node, node)) for key, fork, node in moved}
    joins = {new: run.meetings.pop(key) for key, new in keys.items()}
    times = {new: run.times.pop(key) for key, new in keys.items() if key in run.times}
    run.meetings.update(joins)
    run.times.update(times)
    for key, numbers in list(run.gatherings.items()):
        del run.gatherings[key]
        token = run.tokens[numbers[0]]
        run.gatherings[gathering_key(token, token.times or 0)] = numbers


# -- encoding

_LARGE_INTEGER: Final = 1
_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1
_encode: Final = msgspec.msgpack.Encoder().encode


def encode(run: GraphRun) -> bytes:
    """Return the bytes of a state.

    A state contains authors' values as Python objects. MessagePack has 64-bit integers and JSON has
    integers of any length, so longer ones are encoded as an extension.
    """
    try:
        return _encode(run)
    except OverflowError:
        return _encode(_extended(msgspec.to_builtins(run)))


def _extended(value: Any) -> Any:  # noqa: ANN401, any value
    """Return a value with extensions instead of large integers."""
    if isinstance(value, dict):
        return {key: _extended(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_extended(item) for item in value]
    if type(value) is int and not _LEAST <= value <= _MOST:
        size = value.bit_length() // 8 + 1
        return msgspec.msgpack.Ext(_LARGE_INTEGER, value.to_bytes(size, "big", signed=True))
    return value


def _large_integer(code: int, data: memoryview) -> int:
    if code != _LARGE_INTEGER:
        raise ValueError(f"expected a large integer, found an extension with the code {code}")
    return int.from_bytes(data, "big", signed=True)


decode: Final = msgspec.msgpack.Decoder(GraphRun, ext_hook=_large_integer).decode


# -- locations of events


def location_of(run: GraphRun, decision_events: Sequence[RunEvent], event: RunEvent) -> str:
    """Return the node and token of an event, or the path of a value; empty for the whole run.

    Args:
        run: The run, before or after the event.
        decision_events: Events of the same decision, which may have created the token.
        event: The event to locate.
    """
    match event:
        case ContextChanged(changes=changes):
            return max(changes, key=lambda change: len(change.value)).path
        case TokensCreated(node=node, count=count):
            return f"node {node}, {count} tokens"
        case FanInActivated(node=node, tokens=tokens):
            return f"node {node}, where {len(tokens)} tokens join"
        case TasksDispatched(tasks=tasks):
            return _token_location(
                run, decision_events, max(tasks, key=lambda task: len(task.input or "")).token
            )
        case BranchChanged(fork=fork, branch=branch):
            return f"branch {branch} of fork {fork}"
        case _:
            token = getattr(event, "token", None)
            return "" if token is None else _token_location(run, decision_events, token)


def _token_location(run: GraphRun, decision_events: Sequence[RunEvent], number: int) -> str:
    known = run.tokens.get(number)
    creating_nodes = [
        event.node
        for event in decision_events
        if isinstance(event, TokensCreated) and event.first <= number < event.first + event.count
    ]
    node = known.node if known else creating_nodes[0] if creating_nodes else "unknown"
    return f"node {node}, token {number}"

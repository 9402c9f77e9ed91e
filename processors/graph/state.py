"""The state of a graph's run: the tokens that have not ended, where branches stand, the context.

A token that has ended is no longer held, nor is a fork: what remains of them is in the context,
and in the history. Counters say how many branches of a fork can still arrive, so that an arrival
costs the same however many siblings it has.
"""

from hashlib import sha256
from typing import Any, Final

import msgspec

from headwater.processors.graph.tokens import TokenStatus
from headwater.processors.runs.state import Run
from headwater.schemas.history import Child, Json

#: The kind of runs that are decided here.
KIND: Final = "graph"

_IN_FLIGHT: Final = frozenset({TokenStatus.DISPATCHED, TokenStatus.EXECUTING})


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who has a job, and until when; no lease goes beyond the time when an attempt ends."""

    worker: str
    until_ms: int
    ends_at_ms: int | None = None


class EndedJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How an attempt of a job ended: what its worker said, as a digest."""

    attempt: int
    digest: str


class LiveToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token that has not ended.

    Shape:  `node` to `taken` are as in `tokens.Token`; `transition` is the one it came by;
            `attempts` have failed, of which `lost` because a lease ran out; `at_ms` is when its
            task is tried again, or its child has taken too long. `job` is the idempotency token of
            a task that workers outside do, from its first dispatch on; `lease` says who does it.
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
    taken: dict[str, int]
    status: TokenStatus = TokenStatus.PENDING
    attempts: int = 0
    input: Json | None = None
    at_ms: int | None = None
    child: Child | None = None
    job: str | None = None
    lease: Lease | None = None
    lost: int = 0

    @property
    def in_flight(self) -> bool:
        """Whether an attempt of its task is under way."""
        return self.status in _IN_FLIGHT

    @property
    def waits_for_others(self) -> bool:
        """Whether others can end what it waits for before its time does: a child, or a worker."""
        return self.child is not None or self.lease is not None

    @property
    def place(self) -> str | None:
        """The branch that it is in."""
        return None if self.fork is None else place(self.fork, self.branch)


class LiveFork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fork that has tokens.

    Shape:  origin is the token that it began at; `live` counts branches that can still arrive
            somewhere, `waiting` tokens that wait where branches meet; `meetings` are the nodes
            where some do, `met` those where branches have met.
    """

    group: str | None
    total: int
    origin: LiveToken
    live: int = 0
    waiting: int = 0
    meetings: tuple[str, ...] = ()
    met: tuple[str, ...] = ()


class LiveBranch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A branch of a fork.

    Shape:  `active` counts its tokens that move, and the forks within it; `arrived` are the nodes
            where it waits, `item_name` and `item` what expressions see.
    """

    active: int = 0
    arrived: tuple[str, ...] = ()
    output: dict[str, Any] = {}
    item_name: str | None = None
    item: Any = None


class Meeting(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of a fork that wait at a node: of so many branches, the first came by `transition`."""

    transition: str
    tokens: int = 0
    branches: int = 0
    until_ms: int | None = None


class GraphRun(Run, kw_only=True, dict=True):
    """A run of a graph.

    Shape:  document is its definition, JSON text. `created` and `undispatched` are token numbers:
            of the next, and of the first that may wait for its dispatch. `in_flight` counts
            attempts under way, and `jobs` those of them that are for workers outside, taken or not;
            `ended_jobs` are the latest that ended, by token. Branches are by their place, meetings
            by fork and node; `times` is when time moves what waits; latest is the token that has
            completed last.
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
    times: dict[str, int] = msgspec.field(default_factory=dict)
    latest: LiveToken | None = None
    jobs: int = 0
    ended_jobs: dict[int, EndedJob] = msgspec.field(default_factory=dict)

    def token_of(self, key: str) -> LiveToken | None:
        """The token whose number this is; None if it has ended, or it is the key of no token."""
        return self.tokens.get(int(key)) if key.isascii() and key.isdecimal() else None


def digest_of_end(*said: str) -> str:
    """What is kept of what a worker says at the end of a job, to know it again."""
    return sha256("\0".join(said).encode(errors="surrogatepass")).hexdigest()[:16]


def place(fork: str, branch: int) -> str:
    """The key of a branch."""
    return f"{fork}/{branch}"


def meeting_key(fork: str, node: str) -> str:
    """The key of a meeting point: a slash in the name of its node is written as `~1`."""
    return f"{fork}/{node.replace('~', '~0').replace('/', '~1')}"


def meeting_place(key: str) -> tuple[str, str]:
    """The fork and the node of a meeting point."""
    fork, _, node = key.rpartition("/")
    return fork, node.replace("~1", "/").replace("~0", "~")

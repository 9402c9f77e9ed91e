"""The laws of graphs: tokens are counted again, naively, after each record.

Each token that is created ends once. Branches meet once in a fork, and so once in each round of a
loop. What a run holds, and every counter in it, is what a look at all its tokens gives. A state
survives being bytes, and equal histories give equal bytes.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.past import Past
from headwater.processors.graph.state import GraphRun, LiveBranch, branch_key, meeting_key
from headwater.processors.graph.tracing import Tracing
from headwater.schemas.history import (
    BranchFailed,
    FanInActivated,
    ForkEnded,
    ForkOpened,
    GraphMigrated,
    HistoryAppended,
    LogEvent,
    OutcomeHeld,
    RunStarted,
    SubworkflowStarted,
    TasksDispatched,
    TokenArrived,
    TokenCompleted,
    TokenFailed,
    TokensCancelled,
    TokensCreated,
    TokensTimedOut,
    TransitionsJoined,
    WaitStarted,
)
from headwater.schemas.statuses import RunStatus
from tests.fakes.followed_graphs import followed
from tests.simulation.job_laws import JobLaws
from tests.simulation.shapes import Violation

if TYPE_CHECKING:
    from tests.simulation.engine_world import World

PENDING, FLYING, CHILD, SLEEPS, WAITS = "pending", "flying", "child", "sleeps", "waits"
DONE, KEPT = "done", "kept"
#: It waits for tokens on the other ways to its node.
HELD = "held"
#: What an event needs a token to be.
_UNDER_WAY = {FLYING, CHILD, SLEEPS}


@dataclass
class _Token:
    node: str
    fork: str | None
    branch: int
    status: str = PENDING
    tries_later: bool = False
    external: bool = False


@dataclass
class GraphLaws:
    """An instance, as far as it was read; tokens and forks are never forgotten."""

    tokens: dict[int, _Token] = field(default_factory=dict)
    #: The token that a fork began at.
    forks: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    met: set[str] = field(default_factory=set)
    failed: set[tuple[str, int]] = field(default_factory=set)
    #: Joins where tokens wait no longer than for some time, also in a retry.
    limited: set[tuple[str | None, str]] = field(default_factory=set)
    #: What tokens were that a failed run has kept.
    kept: dict[int, str] = field(default_factory=dict)
    #: Tokens with an outcome that waits for the end of a pause.
    held: set[int] = field(default_factory=set)
    jobs: JobLaws = field(default_factory=JobLaws)

    def read(self, record: HistoryAppended, after: GraphRun) -> None:
        """Reads a record; after is the state with it."""
        for event in record.events:
            try:
                self._take(event)
                self.jobs.take(event, record.at_ms)
            except (KeyError, AssertionError) as why:
                raise Violation(f"{record.instance_id}: {event} in {record}: {why!r}") from why
        if after.ended:
            left = [number for number, token in self.tokens.items() if token.status in _LIVE]
            _law(not left, f"expected all tokens of {record.instance_id} to have ended", left)
        else:
            self._check(after)
        engine = GraphEngine()
        again = engine.decode(engine.encode(after))
        _law(again == after, "expected a state to survive being bytes", (again, after))

    # -- what happens to tokens

    def _take(self, event: LogEvent) -> None:  # noqa: C901, PLR0912, PLR0915, one for each event
        match event:
            case RunStarted(kept=None):
                self.__init__()  # type: ignore[misc]
            case RunStarted():
                for number, status in self.kept.items():
                    self.tokens[number].status = status
                self.kept, self.held = {}, set()
            case TokensCreated():
                assert event.first == len(self.tokens)
                for nth in range(event.count):
                    token = _Token(event.node, event.fork, event.branch + nth)
                    token.external = event.external
                    self.tokens[event.first + nth] = token
                assert event.fork is None or event.fork in self.forks
            case ForkOpened():
                assert event.fork not in self.forks
                assert self.tokens[event.origin].status == DONE
                self.forks[event.fork] = event.origin
            case ForkEnded():
                assert not self._moving(event.fork)
                assert not self._waiting(event.fork)
                self.ended.add(event.fork)
            case TasksDispatched():
                for task in event.tasks:
                    self._become(task.token, {PENDING}, FLYING)
                    self.tokens[task.token].tries_later = False
            case SubworkflowStarted():
                self._become(event.token, {PENDING}, CHILD)
            case TokenCompleted():
                self._become(event.token, _UNDER_WAY, DONE)
            case WaitStarted():
                self._become(event.token, {PENDING}, SLEEPS)
            case OutcomeHeld():
                assert self.tokens[event.token].status in _UNDER_WAY
                assert event.token not in self.held
                self.held.add(event.token)
            case TokenFailed(handled=True):
                self._become(event.token, {*_UNDER_WAY, PENDING}, DONE)
            case TokenFailed(retry_at_ms=None):
                self._keep(event.token, PENDING)
            case TokenFailed():
                self._become(event.token, {FLYING}, PENDING)
                self.tokens[event.token].tries_later = True
                self.held.discard(event.token)
            case TokenArrived():
                waits = WAITS if event.times is None else HELD
                self._become(event.token, {PENDING}, waits)
                if event.until_ms is not None:
                    token = self.tokens[event.token]
                    self.limited.add((token.fork, token.node))
            case TransitionsJoined():
                joined = [self.tokens[number] for number in event.tokens]
                assert len({(token.fork, token.branch, token.node) for token in joined}) == 1
                for number in event.tokens:
                    self._become(number, {HELD}, DONE)
            case FanInActivated():
                assert set(event.tokens) == set(self._waiting(event.fork, event.node))
                joined = {*event.tokens, *event.elsewhere}
                assert joined == set(self._waiting(event.fork))
                for number in joined:
                    self._become(number, {WAITS}, DONE)
                assert event.fork not in self.met
                self.met.add(event.fork)
            case BranchFailed():
                assert (event.fork, event.branch) not in self.failed
                assert event.branch not in self._moving(event.fork)
                self.failed.add((event.fork, event.branch))
            case TokensCancelled(kept=True) | TokensTimedOut():
                for number in event.tokens:
                    status = self.tokens[number].status
                    self._keep(number, status if status in {WAITS, HELD} else PENDING)
            case TokensCancelled():
                for number in event.tokens:
                    self._become(number, _LIVE, DONE)
            case GraphMigrated():
                self._move(event)
            case _:
                pass

    def _move(self, event: GraphMigrated) -> None:
        """Live tokens are at nodes of other names, none twice."""
        names = {moved.node: moved.to for moved in event.nodes}
        self.limited = {(fork, names.get(node, node)) for fork, node in self.limited}
        numbers = [number for moved in event.nodes for number in moved.tokens]
        assert len(numbers) == len(set(numbers))
        for moved in event.nodes:
            for number in moved.tokens:
                token = self.tokens[number]
                assert token.status in {*_LIVE, KEPT}
                assert token.node == moved.node
                token.node, token.external = moved.to, moved.external

    def _become(self, number: int, before: set[str], after: str) -> None:
        token = self.tokens[number]
        assert token.status in before, f"token {number} is {token.status}"
        token.status = after
        if after == DONE:
            self.held.discard(number)

    def _keep(self, number: int, anew: str) -> None:
        self._become(number, _LIVE, KEPT)
        self.kept[number] = anew
        self.tokens[number].tries_later = False

    # -- what they are, counted anew

    def _waiting(self, fork: str, node: str | None = None) -> list[int]:
        return [
            number
            for number, token in self.tokens.items()
            if token.status == WAITS and token.fork == fork and node in {None, token.node}
        ]

    def _moving(self, fork: str) -> dict[int, int]:
        """How many tokens move in each branch of a fork, and forks within it."""
        result: Counter[int] = Counter()
        for token in self.tokens.values():
            if token.fork == fork and token.status in {PENDING, FLYING, CHILD, SLEEPS, HELD}:
                result[token.branch] += 1
        for name, origin in self.forks.items():
            began = self.tokens[origin]
            if name not in self.ended and name != fork and began.fork == fork:
                result[began.branch] += 1
        return dict(result)

    def _check(self, run: GraphRun) -> None:
        live = {number for number, token in self.tokens.items() if token.status in _LIVE}
        _law(set(run.tokens) == live, "tokens", (set(run.tokens), live))
        _law(run.created == len(self.tokens), "created", run.created)
        flying = sum(token.status == FLYING for token in self.tokens.values())
        _law(run.in_flight == flying, "in_flight", (run.in_flight, flying))
        for external, undispatched in ((False, run.undispatched), (True, run.undispatched_job)):
            free = [
                number
                for number, token in self.tokens.items()
                if token.status == PENDING and not token.tries_later and token.external is external
            ]
            first = min(free, default=run.created)
            _law(undispatched == first, "undispatched", (external, undispatched, first))
        _law(set(run.held) == self.held, "held", (set(run.held), self.held))
        waits = {number for number, token in self.tokens.items() if token.status == SLEEPS}
        _law(set(run.waits) == waits, "waits", (set(run.waits), waits))
        jobs = sum(self.tokens[attempt].status == FLYING for attempt in self.jobs.attempts)
        _law(run.jobs == jobs, "jobs", (run.jobs, jobs))
        at_work = flying - jobs
        _law(run.status is not RunStatus.WAITING or not at_work, "at work while it waits", at_work)
        idle = run.status is RunStatus.ACTIVE and not at_work
        _law(not idle, "active with nothing under way", run)
        forks = self.forks.keys() - self.ended
        _law(not forks & self.met, "forks that are over", forks & self.met)
        _law(set(run.forks) == forks, "forks", (set(run.forks), forks))
        for name in forks:
            self._check_fork(run, name)
        places = {key.rpartition("/")[0] for key in run.branches} - {""}
        held = sum(token.status == HELD for token in self.tokens.values())
        _law(held == sum(branch.held for branch in run.branches.values()), "held", held)
        _law(held == sum(map(len, run.gatherings.values())), "gatherings", run.gatherings)
        _law(places <= forks, "branches of forks that are over", places - forks)

    def _check_fork(self, run: GraphRun, name: str) -> None:
        fork, moving, waiting = run.forks[name], self._moving(name), self._waiting(name)
        _law(bool(moving or waiting), "a fork without tokens", name)
        _law(fork.live == len(moving), "live branches", (fork, moving))
        _law(fork.waiting == len(waiting), "waiting tokens", (fork, waiting))
        for branch in range(fork.total):
            result = run.branches.get(branch_key(name, branch))
            active = result.active if result else 0
            _law(active == moving.get(branch, 0), "active tokens", (name, branch, result))
            _law(self._members(name, branch) == _members_of(result), "members", (name, result))
            has_failed = (name, branch) in self.failed
            _law(has_failed == bool(result and result.failed), "failed", (name, branch, result))
        failed = sum(at == name for at, _ in self.failed)
        _law(failed == fork.failed, "failed branches", (fork, failed))
        nodes = Counter(self.tokens[number].node for number in waiting)
        _law(set(fork.meetings) == set(nodes), "meetings", (fork, nodes))
        for node, count in nodes.items():
            meeting = run.meetings[meeting_key(name, node)]
            branches = {
                self.tokens[item].branch for item in waiting if self.tokens[item].node == node
            }
            seen = (meeting.tokens, meeting.branches, meeting.settled)
            counted = (count, len(branches), len(branches - moving.keys()))
            _law(seen == counted, "a meeting", (meeting, counted))
            has_limit = (meeting.until_ms is not None) == ((name, node) in self.limited)
            _law(has_limit, "the limit of a wait", meeting)

    def _members(self, fork: str, branch: int) -> tuple[set[int], set[str]]:
        """The live tokens of a branch, and the forks that began in it."""
        began = self.forks.keys() - self.ended
        return (
            {
                number
                for number, token in self.tokens.items()
                if token.status in _LIVE and (token.fork, token.branch) == (fork, branch)
            },
            {
                name
                for name in began
                for origin in [self.tokens[self.forks[name]]]
                if (origin.fork, origin.branch) == (fork, branch)
            },
        )


def _members_of(branch: LiveBranch | None) -> tuple[set[int], set[str]]:
    return (set(branch.tokens), set(branch.forks)) if branch else (set(), set())


_LIVE = {PENDING, FLYING, CHILD, SLEEPS, WAITS, HELD}


def _law(holds: bool, what: str, found: object) -> None:
    if not holds:
        raise Violation(f"{what}: found {found}")


def same_graph_runs(mine: GraphRun, theirs: GraphRun) -> bool:
    """Whether two states are one; of a run that is over, an owner may keep what a retry needs."""
    engine = GraphEngine()
    runs = [engine.decode(engine.encode(item)) for item in (mine, theirs)]
    if theirs.ended:
        for run in runs:
            engine.drop_finished(run)
    return engine.encode(runs[0]) == engine.encode(runs[1])


def _decided_again(key: str, run: GraphRun, records: list[HistoryAppended]) -> None:
    """Each decision of a run, made again from the state before it, is the same."""
    first: int | None = 0
    while first is not None:
        past = Past(run.workflow, run.instance_id, run.run_number)
        tracing = Tracing(past, first)
        for record in records:
            tracing.apply(record)
        page = tracing.page()
        for item in page.decided:
            _law(item.same, f"expected {key} to be decided again as it was", item)
        first = page.next_from
        _law(first is not None or past.run == run, f"expected {key} to look as it is", past.run)


def agrees_with_the_model(world: "World") -> None:
    """Every graph has done what the naive model does, given the same results and times."""
    for partition in world.partitions:
        for key, records in partition.reader.counted.items():
            run = partition.reader.states[key]
            if isinstance(run, GraphRun):
                _decided_again(key, run, records)
                try:
                    followed(records)
                except AssertionError as why:
                    raise Violation(f"{key} differs from the model: {why}") from why
            elif run.workflow == "longest":
                _law(run.status is not RunStatus.COMPLETE, "a child outlives its parent", key)

"""Runs of graphs, driven by the engine itself: what comes from outside, and when, is drawn.

Each decision is made twice: of the state as it is, and of one that was restored from its bytes. The
events must be the same, and neither state may change.
"""

import copy
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from headwater.processors.graph.definition import to_dict
from headwater.processors.graph.engine import GraphEngine
from headwater.processors.graph.graph import Graph, graph_of
from headwater.processors.graph.past import Past
from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import GraphRun, LiveToken
from headwater.processors.graph.timing import policy_of
from headwater.processors.graph.tracing import Tracing
from headwater.processors.runs.decisions import (
    STALE,
    Decision,
    Facts,
    Reached,
    Rejection,
    Request,
    RetryPolicy,
    StepRaised,
    StepReturned,
    StepUnderWay,
    Wake,
)
from headwater.processors.runs.engine import fold
from headwater.processors.runs.limits import DEFAULT_LIMITS
from headwater.schemas.failures import STEP_TIMEOUT
from headwater.schemas.history import (
    NO_CAUSE,
    Failure,
    FinishChild,
    GraphMigrated,
    GraphStarted,
    HistoryAppended,
    Limits,
    MigrateRun,
    NodeRename,
    PauseRun,
    RestartRun,
    ResumeRun,
    RetryRun,
    RunCommand,
    RunEvent,
    RunStarted,
    SendEvent,
    SetBranchOutput,
    StartRun,
)
from headwater.schemas.statuses import RunStatus
from tests.fakes.drawn_graphs import EVENTS, INPUT, STRATEGIES, Blocks, works_or_waits
from tests.fakes.followed_graphs import followed
from tests.simulation.graph_laws import GraphLaws

_FLYING: Final = {TokenStatus.DISPATCHED, TokenStatus.EXECUTING}
_ONCE: Final = RetryPolicy(0, 0, "constant")
#: What comes from outside before nothing goes wrong any more, and until the run must have ended.
_DRAWN_MAX, _ENDS_WITHIN = 120, 5_000
_RETRIES_MAX: Final = 4


class Played:
    """A run with its history, and a clock."""

    def __init__(self, graph: Graph, limits: Limits = DEFAULT_LIMITS) -> None:
        self.graph = graph
        self.engine = GraphEngine([graph], limits)
        self.records: list[HistoryAppended] = []
        self.run: GraphRun | None = None
        self.now_ms = 1_000
        self.command(StartRun(msgspec.json.encode(INPUT).decode()))

    @property
    def live(self) -> GraphRun:
        assert self.run is not None
        return self.run

    def append(self, decided: list[RunEvent] | Rejection) -> list[RunEvent]:
        assert not isinstance(decided, Rejection), decided
        before = self.run
        begins = isinstance(decided[0], RunStarted)
        record = HistoryAppended(
            workflow="g",
            instance_id="i",
            run_number=0 if before is None else before.run_number + begins,
            sequence=0 if before is None or begins else before.sequence,
            epoch=0,
            cause=NO_CAUSE,
            at_ms=self.now_ms,
            events=tuple(decided),
        )
        self.records.append(record)
        self.run = fold({"graph": self.engine}, before, record)
        for event in decided:
            if isinstance(event, GraphStarted | GraphMigrated):
                self.graph = graph_of(msgspec.json.decode(event.document))
        return decided

    def command(self, command: RunCommand) -> Decision:
        """Takes a command; one that is refused changes nothing."""
        facts = Facts("g", "i", self.now_ms, self.now_ms, "seed")
        return self._take(lambda run: self.engine.decide_command(run, command, facts))

    def request(self, request: Request) -> Decision:
        return self._take(lambda run: self.engine.decide(run, request, self.now_ms))

    def _take(self, decide: Callable[[GraphRun | None], Decision]) -> Decision:
        before = None if self.run is None else self.engine.encode(self.run)
        decided = decide(self.run)
        again = decide(None if before is None else self.engine.decode(before))
        assert msgspec.msgpack.encode(decided) == msgspec.msgpack.encode(again)
        assert self.run is None or before == self.engine.encode(self.run)
        if not isinstance(decided, Rejection):
            self.append(decided)
        return decided

    def flying(self) -> list[LiveToken]:
        run = self.run
        if run is None or run.ended:
            return []
        tokens = (token for token in run.tokens.values() if token.status in _FLYING)
        return [token for token in tokens if token.number not in run.held]

    def parents(self) -> list[LiveToken]:
        """Tokens that wait for a child."""
        run = self.live
        tokens = run.tokens.values() if not run.ended else ()
        return [item for item in tokens if item.child is not None and item.number not in run.held]

    def complete(self, token: LiveToken, output: str) -> list[RunEvent]:
        decided = self.request(StepReturned(_reached(token), token.attempts + 1, _ONCE, output))
        assert not isinstance(decided, Rejection)
        return decided

    def fail(self, token: LiveToken, failure: Failure, *, retryable: bool = True) -> Decision:
        policy = policy_of(self.graph, token)
        return self.request(
            StepRaised(_reached(token), token.attempts + 1, failure, policy, retryable)
        )

    def finish_child(self, token: LiveToken, outcome: str | Failure) -> Decision:
        output, failure = (outcome, None) if isinstance(outcome, str) else (None, outcome)
        return self.command(FinishChild(self.live.run_number, str(token.number), output, failure))

    def begin(self, token: LiveToken) -> Decision:
        return self.request(StepUnderWay(_reached(token), token.attempts + 1))

    def past(self, until: int | None = None) -> Past:
        past = Past("g", "i", self.live.run_number, until)
        for record in self.records:
            past.apply(record)
        assert past.refused() is None
        return past


def _reached(token: LiveToken) -> Reached:
    return Reached(str(token.number), token.node, token.number, 0, 1, 0)


def drawn(draw: Random) -> Graph:
    """A graph with everything that graphs have, but jobs."""
    errors, limited = draw.random() < 0.7, draw.random() < 0.5
    blocks = Blocks(
        draw,
        STRATEGIES,
        works_or_waits,
        timeouts=True,
        tolerant=True,
        errors=errors,
        limited=limited,
    )
    return graph_of(blocks.document("g", draw.choice([1, 2, 2, 3])))


class Player:
    """Plays a run of which nodes fail, that is paused, retried, moved, and restored.

    Laws are kept to at every step, the naive model at the end; and the end comes.
    """

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.played = Played(drawn(draw), self._limits(draw))
        self.laws = GraphLaws()
        self._read = 0
        self._retries = 0
        self._moves = 0
        self._events = 0
        #: Of each token that fails, how often it does; others are quick.
        self._fails = draw.choice([0.0, 0.1, 0.3])
        self._check()

    def play(self) -> list[HistoryAppended]:
        for _ in range(self.draw.choice([0, _DRAWN_MAX, _DRAWN_MAX])):
            if not self.played.live.ended:
                self._step()
            elif not self._continue():
                break
        for _ in range(_ENDS_WITHIN):
            if not self.played.live.ended:
                self._fails = min(self._fails, 0.1)
                self._go_on()
            elif not self._continue():
                break
        assert self.played.live.ended, "the run does not end"
        self._agree()
        return self.played.records

    def _check(self) -> None:
        for record in self.played.records[self._read :]:
            self.laws.read(record, self.played.live)
        self._read = len(self.played.records)

    def _agree(self) -> None:
        followed(self.played.records)
        for number in range(self.played.live.run_number + 1):
            first: int | None = 0
            while first is not None:
                tracing = Tracing(Past("g", "i", number), first)
                for record in self.played.records:
                    tracing.apply(record)
                page = tracing.page()
                assert all(item.same for item in page.decided)
                first = page.next_from

    # -- what comes from outside

    def _step(self) -> None:
        kind = self.draw.random()
        if kind < 0.05:
            self._say(self.draw.choice([PauseRun(), ResumeRun(), ResumeRun()]))
        elif kind < 0.15:
            self._send()
        elif kind < 0.18:
            self._move()
        elif kind < 0.2 and self.draw.random() < 0.1:
            self._say(RestartRun())
        elif kind < 0.4:
            self._pass_time()
        else:
            self._work()
        self._check()

    def _go_on(self) -> None:
        """Something happens that brings the run to its end."""
        run = self.played.live
        if run.status is RunStatus.PAUSED:
            self._say(ResumeRun())
            self._check()
            return
        ending = self.played.flying() or self.played.parents()
        if ending and self.draw.random() < 0.7:
            self._work()
        else:
            assert self._pass_time() or ending, "nothing can happen"
        self._check()

    def _continue(self) -> bool:
        """A run that failed is retried some times."""
        run = self.played.live
        if run.status is not RunStatus.ERRORED or self._retries >= _RETRIES_MAX:
            return False
        self._retries += 1
        self.played.now_ms += self.draw.choice([0, 500, 10_000])
        if self.draw.random() < 0.3:
            self._set_output()
        if self.draw.random() < 0.3:
            self._move()
            self._check()
        if self.draw.random() < 0.5:
            self.played.engine._limits = self._limits(self.draw)
        assert not isinstance(self._say(RetryRun()), Rejection)
        self._check()
        return True

    @staticmethod
    def _limits(draw: Random) -> Limits:
        """Limits that some runs reach."""
        if draw.random() < 0.7:
            return DEFAULT_LIMITS
        return Limits(max_tokens=draw.choice([5, 12, 40]), max_rounds=draw.choice([1, 2, 10_000]))

    def _set_output(self) -> None:
        """An operator replaces the output of a branch of a run that has failed."""
        branches = self.played.live.branches
        keys = [key for key in branches if key]
        if keys:
            fork, _, number = self.draw.choice(keys).rpartition("/")
            group = self.played.live.forks[fork].group
            output = self.draw.choice(['{"at":{}}', '{"at":"set"}', "{}"])
            if group is not None:
                said = self._say(SetBranchOutput(group, int(number), output, fork))
                assert not isinstance(said, Rejection), said
                self._check()

    def _say(self, command: RunCommand) -> Decision:
        return self.played.command(command)

    def _send(self) -> None:
        self._events += 1
        payload = f'{{"at":"event {self._events}"}}'
        self._say(SendEvent(f"e{self._events}", self.draw.choice(EVENTS), payload))

    def _work(self) -> None:
        """Some token's task or child ends, or a task begins."""
        played, draw = self.played, self.draw
        ending = [*played.flying(), *played.parents()]
        if not ending:
            return
        token = draw.choice(ending)
        kind = draw.random()
        name = STEP_TIMEOUT if draw.random() < 0.2 else "Refused"
        failure = Failure(name, f"token {token.number}")
        if token.child is not None:
            outcome = failure if kind < self._fails else self._result(token)
            decided = played.finish_child(token, outcome)
        elif kind < self._fails:
            decided = played.fail(token, failure, retryable=draw.random() < 0.7)
        elif kind > 0.9 and token.status is TokenStatus.DISPATCHED:
            decided = played.begin(token)
        else:
            decided = played.complete(token, self._result(token))
        assert decided != STALE

    def _result(self, token: LiveToken) -> str:
        """What a task gives: a text, or now and then something that mappings and merges refuse."""
        if self.draw.random() < 0.8:
            return f'{{"at":"{token.path}:{token.node}"}}'
        return self.draw.choice(
            [f'{{"at":{{"{token.node}":[]}}}}', "null", "[]", '{"at":18446744073709551616}']
        )

    def _pass_time(self) -> bool:
        """The clock moves, to what is due next or a little; timers may be late or not come."""
        played, draw = self.played, self.draw
        due_ms = played.engine.next_wake_ms(played.live)
        if due_ms is None or (draw.random() < 0.2 and due_ms > played.now_ms):
            played.now_ms += draw.choice([1, 500])
            return due_ms is not None
        late_ms = draw.choice([0, 0, 1, 3_000])
        played.now_ms = max(played.now_ms, due_ms + late_ms)
        played.request(Wake(played.now_ms, complete=draw.random() < 0.5))
        return True

    def _move(self) -> None:
        """The run goes on in a graph of which some nodes have other names, and which goes on."""
        draw, before = self.draw, self.played.live.document
        self._moves += 1
        document = copy.deepcopy(msgspec.json.decode(before))
        nodes = [node["ref"] for node in document["nodes"]]
        names = {ref: f"{ref}'" for ref in nodes if draw.random() < 0.3}
        for node in document["nodes"]:
            node["ref"] = names.get(node["ref"], node["ref"])
        for way in document["transitions"]:
            for end in ("fromNodeRef", "toNodeRef"):
                way[end] = names.get(way[end], way[end])
        first = document["initialNodeRef"]
        document["initialNodeRef"] = names.get(first, first)
        document["outputMapping"] = {"moved": str(self._moves), "all": "output"}
        graph = graph_of(document)
        renamed = tuple(NodeRename(node, to) for node, to in names.items())
        text = msgspec.json.encode(to_dict(graph.definition)).decode()
        decided = self._say(MigrateRun(text, graph.digest, None, renamed))
        completed = self.played.live.ended and self.played.live.status is not RunStatus.ERRORED
        assert completed or not isinstance(decided, Rejection), decided

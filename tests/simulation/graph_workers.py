"""Workers outside: they take jobs, do them or fail, extend, vanish, repeat themselves, come late.

They see what the history says, as Postgres would show it, and know of a command what its owner has
answered. When faults have stopped they do what they take, so that every run ends.
"""

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.processors.graph.planning import TokenStatus
from headwater.processors.graph.state import GraphRun, LiveToken
from headwater.processors.graph.timing import LEASES_LOST_MAX
from headwater.schemas.failures import is_refused
from headwater.schemas.history import (
    ActivateJob,
    Attempt,
    CommandSent,
    CompleteJob,
    ExtendJob,
    FailJob,
    Failure,
    JobCommand,
    instance_key,
)
from headwater.streams.kafka.records import partition_of

if TYPE_CHECKING:
    from tests.simulation.engine_world import World

#: Longer than clocks differ: a lease that is over already is not given.
LEASES_MS: Final = (4_000, 10_000, 10_000, 600_000)
#: Claims that somebody still thinks of, so as to come late.
_REMEMBERED: Final = 20


@dataclass
class Claim:
    """What a worker believes to have, or to have had."""

    workflow: str
    instance_id: str
    attempt: Attempt
    output: str
    #: The partition, and the offset, of the command that asked for it.
    asked: tuple[int, int]
    said: JobCommand | None = None


class Workers:
    """All workers of a world."""

    def __init__(self, world: "World", seed: int | str) -> None:
        self.world = world
        self.random = random.Random(f"workers of {seed}")
        #: Nobody does anything in time, where it does not matter how a world ends.
        unsettled = all(root.shape.graphs and root.variant % 2 for root in world.roots)
        self.careless = unsettled and self.random.random() < 0.2
        self.claims: list[Claim] = []
        self.past: list[Claim] = []
        #: When, and at which event of its run, an attempt was asked for last.
        self._asked: dict[tuple[str, Attempt], tuple[int, int]] = {}
        self._sent: dict[int, list[tuple[int, CommandSent]]] = {}

    def sent_to(self, partition: int) -> list[tuple[int, CommandSent]]:
        """What was sent, with its offsets."""
        return self._sent.get(partition, [])

    def can_act(self) -> bool:
        return bool(self._answered() or self._open())

    def act(self) -> str:
        """A worker does something."""
        draw, faulty = self.random, self.world.faulty
        if faulty and self.past and draw.random() < 0.2:
            return self._come_late(draw.choice(self.past))
        result: list[Claim | tuple[GraphRun, LiveToken]] = [*self._answered(), *self._open()]
        chosen = draw.choice(result)
        return self._go_on(chosen) if isinstance(chosen, Claim) else self._ask(*chosen)

    # -- taking

    def _open(self) -> list[tuple[GraphRun, LiveToken]]:
        """Jobs that may be asked for: again only if something has moved since."""
        result = []
        for run in self.world.runs().values():
            for token in run.tokens.values() if isinstance(run, GraphRun) and not run.ended else ():
                position = (instance_key(run.workflow, run.instance_id), _attempt(run, token))
                if (
                    token.job is not None
                    and token.status is TokenStatus.DISPATCHED
                    and self._asked.get(position) != (self.world.now_ms, run.sequence)
                    # Whether a world ends as it should must not depend on how many are lost.
                    and (self.careless or not self._is_nearly_lost(token))
                ):
                    result.append((run, token))
        return result

    def _is_nearly_lost(self, token: LiveToken) -> bool:
        return self.world.faulty and token.lost >= LEASES_LOST_MAX - 2

    def _ask(self, run: GraphRun, token: LiveToken) -> str:
        attempt, provided = _attempt(run, token), json.loads(token.input or "null")
        key = instance_key(run.workflow, run.instance_id)
        self._asked[key, attempt] = (self.world.now_ms, run.sequence)
        output = json.dumps({"at": f"{provided['node']}:{provided['branch']}"})
        asking = 2 if self.world.faulty and self.random.random() < 0.2 else 1
        for number in range(asking):
            command = ActivateJob(attempt, f"worker {number}", self.random.choice(LEASES_MS))
            position = self._send(run.workflow, run.instance_id, command)
            self.claims.append(Claim(run.workflow, run.instance_id, attempt, output, position))
        return f"asks {asking} times for {key} {attempt}"

    # -- what was taken

    def _answered(self) -> list[Claim]:
        return [claim for claim in self.claims if self._outcome(claim) is not None]

    def _outcome(self, claim: Claim) -> str | None:
        partition, offset = claim.asked
        return self.world.partitions[partition].reader.outcomes.get(offset)

    def _go_on(self, claim: Claim) -> str:
        draw, what = self.random, 0.0 if not self.world.faulty else self.random.random()
        name = f"{claim.instance_id} {claim.attempt}"
        if what < 0.2 and self.world.faulty and not is_refused(self._outcome(claim) or ""):
            self._say(claim, ExtendJob(claim.attempt, draw.choice(LEASES_MS)))
            return f"extends {name}"
        self.claims.remove(claim)
        self.past = [*self.past, claim][-_REMEMBERED:]
        if is_refused(self._outcome(claim) or ""):
            return f"does not get {name}"
        if what > 0.8 or (self.careless and self.world.faulty):
            self.world.seen["workers gone"] += 1
            return f"is gone with {name}"
        if what > 0.6:
            failure = Failure("Unreachable", "not now")
            claim.said = FailJob(claim.attempt, failure, retry_after_ms=draw.choice([None, 0, 500]))
        else:
            claim.said = CompleteJob(claim.attempt, claim.output)
        self._say(claim, claim.said)
        return f"ends {name} by {type(claim.said).__name__}"

    def _come_late(self, claim: Claim) -> str:
        """Says the same once more, or something else, whoever has the job by now."""
        other = self.random.choice(
            [
                CompleteJob(claim.attempt, '{"at": "late"}'),
                FailJob(claim.attempt, Failure("Late", "late"), retryable=False),
                ExtendJob(claim.attempt, 600_000),
                ActivateJob(claim.attempt, "late", 600_000),
            ]
        )
        if claim.said is None:
            # It may still have it: then this would be its end, and not as a world should end.
            other = ExtendJob(claim.attempt, 1_000)
        again = claim.said if claim.said is not None and self.random.random() < 0.5 else other
        self.world.seen["comes late"] += 1
        self._say(claim, again)
        return f"says of {claim.instance_id} {claim.attempt}: {type(again).__name__}"

    def _say(self, claim: Claim, command: JobCommand) -> None:
        self._send(claim.workflow, claim.instance_id, command)

    def _send(self, workflow: str, instance_id: str, command: JobCommand) -> tuple[int, int]:
        key = instance_key(workflow, instance_id).encode()
        number = partition_of(key, len(self.world.partitions))
        sent = self.world.command(workflow, instance_id, command)
        offset = len(self.world.partitions[number].commands) - 1
        self._sent.setdefault(number, []).append((offset, sent))
        return number, offset


def _attempt(run: GraphRun, token: LiveToken) -> Attempt:
    return Attempt(run.run_number, token.number, token.attempts + 1)

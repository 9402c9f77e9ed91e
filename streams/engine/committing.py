"""Commit decisions to memory and staged records, and contain errors to one instance."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias, get_args

from headwater.processors.runs.claims import Claims
from headwater.processors.runs.engine import ShortSteps, engine_of
from headwater.processors.runs.limits import bounded
from headwater.processors.runs.outbox import in_order
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.schemas.failures import INTERNAL
from headwater.schemas.history import (
    NO_CAUSE,
    EntriesCancelled,
    EntryRolledBack,
    Failure,
    HistoryAppended,
    OutcomeHeld,
    PostsQueued,
    PostsSent,
    RollbackFailed,
    RollbackStarted,
    RunCompleted,
    RunErrored,
    RunEvent,
    RunMoved,
    RunResumed,
    RunStarted,
    RunSuspended,
    RunTerminated,
    SlotAsked,
    SlotEvent,
    SlotGranted,
    StepCompleted,
    StepFailed,
    TokenCompleted,
    TokenFailed,
    TokensCancelled,
    instance_key,
)
from headwater.streams.engine.activations import Activations, Priority
from headwater.streams.engine.effects import Queued, Staging, StagingMark
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances
from headwater.streams.engine.quarantine import Incident, describe_error
from headwater.streams.engine.timer_queue import TimerQueue


class Committer:
    """Commits the decisions of one owner."""

    def __init__(
        self,
        claims: Claims,
        instances: LiveInstances,
        staging: Staging,
        activations: Activations,
        timers: TimerQueue,
    ) -> None:
        self._claims = claims
        self._instances = instances
        self._staging = staging
        self._activations = activations
        self._timers = timers
        #: The instance of the latest commit, and whether it was new. After an error within the
        #: commit, the state of the instance is inconsistent.
        self.current: tuple[str, bool] | None = None

    def commit(
        self,
        live: LiveInstance | None,
        workflow: str,
        instance_id: str,
        events: list[RunEvent],
        cause: int,
        now_ms: int,
    ) -> LiveInstance:
        """Apply events, and stage their record and effects."""
        begins = isinstance(events[0], RunStarted)
        if live is None:
            number, sequence = 0, 0
        elif begins:
            number, sequence = live.run.run_number + 1, 0
        else:
            number, sequence = live.run.run_number, live.run.sequence
        # The next claim comes after these records, so its epoch is greater than this number.
        events = in_order(events, self._claims.epoch + self._staging.taken)
        record = HistoryAppended(
            workflow=workflow,
            instance_id=instance_id,
            run_number=number,
            sequence=sequence,
            epoch=self._claims.epoch,
            cause=cause,
            at_ms=now_ms,
            events=tuple(events),
        )
        key = live.key if live is not None else instance_key(workflow, instance_id)
        self.current = (key, live is None)
        if begins:
            live = self._begin(live, record)
        assert live is not None  # noqa: S101, only RunStarted comes first
        self._instances.changed.add(key)
        self._staging.append(live, record)
        run, engine = live.run, live.engine
        for event in events[1:] if begins else events:
            sequence_of = run.sequence
            engine.apply(run, event, now_ms)
            self._follow(live, event, sequence_of)
        self._timers.reschedule(live)
        return live

    def commit_short_step(
        self, live: LiveInstance, steps: ShortSteps[Any], event: StepCompleted, now_ms: int
    ) -> None:
        """Do what `commit` does, for the event of a short step."""
        run, key = live.run, live.key
        sequence = run.sequence
        record = HistoryAppended(
            workflow=run.workflow,
            instance_id=run.instance_id,
            run_number=run.run_number,
            sequence=sequence,
            epoch=self._claims.epoch,
            cause=NO_CAUSE,
            at_ms=now_ms,
            events=(event,),
        )
        self.current = (key, False)
        self._instances.changed.add(key)
        self._staging.append(live, record)
        steps.apply(run, event, now_ms)
        message = live.engine.message_for_host(run, event, live.activation or 0, sequence)
        if message is not None:
            self._activations.send(live, message)
        if live.attempts:
            self._activations.attempts_ended(live, event.key)
        self._timers.reschedule(live)

    def _begin(self, live: LiveInstance | None, record: HistoryAppended) -> LiveInstance:
        started = record.events[0]
        assert isinstance(started, RunStarted)  # noqa: S101, checked by the caller
        if live is None:
            run = engine_of(self._instances.engines, started.kind).begin(None, record)
            live = self._instances.add(instance_key(run.workflow, run.instance_id), run)
        else:
            run = live.engine.begin(live.run, record)
            self._activations.release(live)
            live.run = run
        self._activations.make_ready(live, Priority.BEGIN, record.at_ms)
        return live

    def _follow(self, live: LiveInstance, event: RunEvent, sequence: int) -> None:
        """Stage the effects of an event on the code and on other instances."""
        kind = type(event)
        if kind in _FAILURES and (failed := _failed_attempt(event)) is not None:
            self._activations.attempt_failed(live, failed)
        message = live.engine.message_for_host(live.run, event, live.activation or 0, sequence)
        if message is not None:
            self._activations.send(live, message)
        follow_up = _FOLLOW_UPS.get(kind)
        if follow_up is not None:
            follow_up(self, live, event)

    # -- effects by type of event

    def entry_ended(
        self,
        live: LiveInstance,
        event: StepCompleted | StepFailed | EntryRolledBack | RollbackFailed,
    ) -> None:
        """Stop timing the attempts of an entry."""
        self._activations.attempts_ended(live, event.key)

    def token_ended(
        self,
        live: LiveInstance,
        event: TokenCompleted | TokenFailed | OutcomeHeld,
    ) -> None:
        """Stop timing the attempts of a token."""
        self._activations.attempts_ended(live, str(event.token))

    def tokens_cancelled(self, live: LiveInstance, event: TokensCancelled) -> None:
        """Stop timing the attempts of tokens."""
        self._activations.attempts_ended(live, *map(str, event.tokens))

    def rest(self, live: LiveInstance, _: RunEvent) -> None:
        """Let an instance rest that waits for nothing."""
        self._timers.rest(live)

    def slot_granted(self, live: LiveInstance, _: SlotGranted) -> None:
        """Let a run begin that has got its slot."""
        self._activations.make_ready(live, Priority.BEGIN, live.run.started_at_ms)

    def entries_cancelled(self, live: LiveInstance, event: EntriesCancelled) -> None:
        """Abandon the attempts of canceled entries."""
        self._activations.cancelled(live, event.keys)

    def posts_queued(self, live: LiveInstance, event: PostsQueued) -> None:
        """Send posts when their record is durable."""
        self._staging.effect(Queued(live.key, event.posts))

    def resumed(self, live: LiveInstance, _: RunResumed) -> None:
        """Let the code of a run continue."""
        live.resting = True
        self._activations.make_ready(live, Priority.CONTINUE, live.run.updated_at_ms)

    def moved(self, live: LiveInstance, _: RunMoved) -> None:
        """Let other code continue a run; code that is running keeps it until it waits."""
        if live.activation is not None:
            if not live.resting:
                return
            self._activations.release(live)
        if live.engine.is_runnable(live.run, live.run.updated_at_ms):
            self._activations.make_runnable(live)

    def rollback_started(self, live: LiveInstance, event: RollbackStarted) -> None:
        """Execute code that was cut off again, to collect its handlers."""
        if event.cut_off:
            self._activations.release(live)
            self._activations.make_ready(live, Priority.CONTINUE, live.run.updated_at_ms)

    def suspended(self, live: LiveInstance, _: RunSuspended) -> None:
        """Let a run rest until it is resumed."""
        self._timers.rest(live)
        live.resting = True

    def ended(self, live: LiveInstance, _: RunEvent) -> None:
        """Release a run that has ended."""
        self._activations.release(live)
        self._timers.rest(live)


_FollowUp: TypeAlias = Callable[[Committer, LiveInstance, Any], None]


def _follow_ups() -> dict[type, _FollowUp]:
    by_method: dict[_FollowUp, tuple[type, ...]] = {
        Committer.entry_ended: (StepCompleted, StepFailed, EntryRolledBack, RollbackFailed),
        Committer.token_ended: (TokenCompleted, TokenFailed, OutcomeHeld),
        Committer.tokens_cancelled: (TokensCancelled,),
        Committer.rest: (SlotAsked, PostsSent, *get_args(SlotEvent)),
        Committer.slot_granted: (SlotGranted,),
        Committer.entries_cancelled: (EntriesCancelled,),
        Committer.posts_queued: (PostsQueued,),
        Committer.resumed: (RunResumed,),
        Committer.moved: (RunMoved,),
        Committer.rollback_started: (RollbackStarted,),
        Committer.suspended: (RunSuspended,),
        Committer.ended: (RunCompleted, RunErrored, RunTerminated),
    }
    return {kind: method for method, kinds in by_method.items() for kind in kinds}


#: What follows an event, by its type. Other events have no effects.
_FOLLOW_UPS: Final = _follow_ups()
#: Events with which an attempt may have failed.
_FAILURES: Final = frozenset(
    {StepFailed, RollbackFailed, EntryRolledBack, TokenFailed, OutcomeHeld}
)


def _failed_attempt(event: RunEvent) -> str | None:
    """Return the key of the attempt that failed with an event, or None."""
    match event:
        case StepFailed() | RollbackFailed():
            return event.key
        case EntryRolledBack() if event.failure is not None:
            return event.key
        case TokenFailed():
            return str(event.token)
        case OutcomeHeld() if event.failure is not None:
            return str(event.token)
        case _:
            return None


# -- containment

#: How often an owner restores the state of one instance. The partition waits meanwhile.
#: Three attempts are enough for transient errors such as a lack of memory.
DAMAGES_MAX: Final = 3


class Ending(NamedTuple):
    """How a run is to end: the failure, and the number of the attempt at ending it."""

    failure: Failure
    attempt: int


class Containment:
    """Contains the errors of one owner.

    Deciding is pure, so an error there changes nothing. An error while events are applied leaves an
    inconsistent state: what was staged is rolled back, and the instance is *damaged* until its
    state is restored from the log. An instance that is damaged repeatedly, or that cannot even be
    ended, is quarantined.
    """

    def __init__(
        self,
        instances: LiveInstances,
        activations: Activations,
        staging: Staging,
        committer: Committer,
    ) -> None:
        self._instances = instances
        self._activations = activations
        self._staging = staging
        self._committer = committer
        self._incidents: list[Incident] = []
        self._damages: dict[str, int] = {}
        #: Damaged instances, and how their runs end after they are restored, if they do.
        self.damaged: dict[str, Ending | None] = {}

    def begin(self) -> StagingMark:
        """Start work that may fail. `contain` undoes what is staged from now on."""
        self._committer.current = None
        return self._staging.mark()

    def contain(self, error: Exception, mark: StagingMark, kind: str, what: str) -> None:
        """Undo what was staged since a mark, and record the error.

        Args:
            error: The error. An error that does not concern a single instance is raised.
            mark: Result of `begin`, before the work that failed.
            kind: What failed, as a label of metrics.
            what: The same for messages.
        """
        if isinstance(error, HeadwaterError) and error.disposition is Disposition.RETRY:
            # It concerns the whole partition, such as a damaged store on disk.
            raise error
        self._staging.roll_back(mark)
        self._incidents.append(Incident(kind, what, error))
        current, self._committer.current = self._committer.current, None
        if current is None:
            return
        key, is_new = current
        live = self._instances.in_memory(key)
        if live is None:
            return
        self._activations.release(live)
        if is_new:
            live.damaged = True
            self._instances.drop(key)
            return
        self._damages[key] = self._damages.get(key, 0) + 1
        if self._damages[key] > DAMAGES_MAX:
            self.quarantine(key, f"{what} failed: {describe_error(error)}", error)
            return
        live.damaged = True
        self.damaged[key] = None

    def quarantine(self, key: str, reason: str, error: Exception | None = None) -> None:
        """Take an instance out of use."""
        self.damaged.pop(key, None)
        self._instances.quarantine(key, reason, error)
        self.release_quarantined()

    def release_quarantined(self) -> None:
        """Release newly quarantined instances from their hosts."""
        for quarantined in self._instances.take_quarantined():
            if quarantined.live is not None:
                self._activations.release(quarantined.live)
            what = f"{quarantined.key}: {quarantined.reason}"
            incident = Incident("quarantine", what, quarantined.error, quarantined=True)
            self._incidents.append(incident)

    def defer_end(self, live: LiveInstance, ending: Ending) -> bool:
        """End the run of a damaged instance after it is restored. Return whether it is damaged."""
        if live.key in self.damaged:
            self.damaged[live.key] = ending
        return live.damaged

    def take_incidents(self) -> list[Incident]:
        """Return the errors since the last call."""
        incidents, self._incidents = self._incidents, []
        return incidents


def failure_of(what: str, error: Exception) -> Failure:
    """Return the failure of a run with a failed decision."""
    message = f"{what} failed: {describe_error(error)}; the log of the worker has the traceback"
    return Failure(INTERNAL, bounded(message))

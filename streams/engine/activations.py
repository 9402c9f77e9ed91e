"""What hosts have in hand of a partition: activations of runs, and attempts of their steps.

Whatever a host is sent is staged, and goes out when what it follows from is durable. A run that is
paused, or whose code rests, is sent nothing: what it has to see is held until it goes on.
"""

from collections.abc import Callable, Collection, Iterator

from headwater.processors.runs.host_messages import (
    AbandonAttempt,
    AttemptStarted,
    Evict,
    HostMessage,
    PollProgress,
)
from headwater.processors.runs.state import Run
from headwater.schemas.statuses import RunStatus
from headwater.streams.engine.agenda import Agenda
from headwater.streams.engine.live_instances import LiveInstance
from headwater.streams.engine.ready import Priority, ReadyInstances
from headwater.streams.engine.staging import Staging


class Activations:
    """The activations of one owner.

    Shape:  `number` gives one that no other activation of the process has, for a host; `host_of`
            gives that of the host which has the code of a run now, None if none has.
    """

    def __init__(
        self,
        agenda: Agenda,
        staging: Staging,
        number: Callable[[int], int],
        host_of: Callable[[Run], int | None],
    ) -> None:
        self._agenda = agenda
        self._staging = staging
        self._number = number
        self._host_of = host_of
        self._live: dict[int, LiveInstance] = {}
        self.ready = ReadyInstances()
        #: The instances that would go on if there were code for them here, by their workflows.
        self.without_code: dict[str, set[str]] = {}

    def numbers(self) -> list[int]:
        """The activations that are not over."""
        return list(self._live)

    def find(self, number: int) -> LiveInstance | None:
        """The instance of an activation, unless that is over."""
        return self._live.get(number)

    def are_running(self) -> bool:
        """Whether the code of an instance is under way, or a step of one."""
        return any(
            not live.resting and live.run.status is not RunStatus.PAUSED
            for live in self._live.values()
        )

    def hosts(self) -> set[int]:
        """The numbers of the hosts that have one of them, or will be given one."""
        return {live.host for live in self._live.values()} | self.ready.hosts()

    # -- to hosts

    def make_ready(self, live: LiveInstance, priority: Priority, at_ms: int) -> None:
        """Lets an instance go on, unless its code is at work already.

        Shape:  one whose host is gone waits for the SQL of its steps: it would begin them again.
        """
        at_work = live.committing if live.activation is None else not live.resting
        if live.ready or at_work:
            return
        live.ready = True
        self.ready.put(self._host_of(live.run) or 0, live.key, priority, at_ms)

    def hand_back(self, live: LiveInstance) -> None:
        """Takes an instance out of its host's hands, to be given to it again."""
        self.let_go(live)
        self.make_runnable(live)

    def make_runnable(self, live: LiveInstance) -> None:
        """Lets an instance go on, or begin if nothing was recorded of its run."""
        priority = Priority.BEGIN if live.run.sequence == 1 else Priority.CONTINUE
        self.make_ready(live, priority, live.run.updated_at_ms)

    def take_without_code(self) -> list[str]:
        """The instances that had no code here when they would have gone on."""
        waited = [key for keys in self.without_code.values() for key in keys]
        self.without_code.clear()
        return waited

    def hand_out(self, live: LiveInstance, now_ms: int, closed: Collection[int]) -> bool:
        """Has the host go on with an instance, which another may have had; False if none can."""
        host = self._host_of(live.run)
        if host is None:
            # It stays as it is until its code comes, or a worker that has it.
            self.without_code.setdefault(live.run.workflow, set()).add(live.key)
            return False
        if host in closed:
            self.make_runnable(live)  # Its code has moved while it waited.
            return False
        if live.activation is not None and live.host != host:
            self.let_go(live)
        if live.activation is None:
            live.host = host
            number = self._number(host)
            activate = live.engine.activate(live.run, number)
            if activate is None:
                return False
            live.activation = number
            self._live[number] = live
            self._staging.effect(activate)
        elif live.resting:
            self._staging.effect(*live.held, PollProgress(live.activation))
            live.held.clear()
        live.resting = False
        self.begin_attempts(live, now_ms)
        return True

    def send(self, live: LiveInstance, message: HostMessage) -> None:
        """Sends the host a message, or keeps it for when the run goes on."""
        paused = live.run.status is RunStatus.PAUSED
        if live.activation is not None and not live.resting and not paused:
            self._staging.effect(message)
            return
        if live.activation is not None:
            live.held.append(message)
        if not paused:
            self.make_ready(live, Priority.CONTINUE, live.run.updated_at_ms)

    def let_go(self, live: LiveInstance) -> None:
        """Takes an instance out of its host's hands."""
        if live.activation is not None:
            self._staging.effect(Evict(live.activation))
        self._take_back(live)

    # -- attempts

    def begin_attempts(self, live: LiveInstance, now_ms: int) -> None:
        """Has the host begin what is due there; it is given the run first, if it has not got it."""
        engine, run = live.engine, live.run
        due = engine.attempts_due(run, live.activation or 0, now_ms)
        due = {key: message for key, message in due.items() if key not in live.attempts}
        if live.activation is None or live.resting:
            if due or engine.is_runnable(run, now_ms):
                self.make_ready(live, Priority.CONTINUE, now_ms)
            return
        for key, message in due.items():
            live.attempts[key] = None
            self._staging.effect(message)

    def attempt_started(self, live: LiveInstance, started: AttemptStarted, now_ms: int) -> None:
        """Watches an attempt that its host says takes a while."""
        live.attempts[started.step.key] = started
        self._agenda.watch(started, now_ms)

    def attempt_failed(self, live: LiveInstance, key: str) -> None:
        """Has the host drop an attempt: it may be running still, or believe that it returned."""
        if live.activation is not None:
            self._staging.effect(AbandonAttempt(live.activation, key))

    def attempts_ended(self, live: LiveInstance, *keys: str) -> None:
        """Watches the attempts of these steps no longer."""
        for started in [live.attempts.pop(key, None) for key in keys]:
            if started is not None:
                self._agenda.unwatch(started)

    def cancelled(self, live: LiveInstance, keys: Collection[str]) -> None:
        """Watches attempts no longer; a host may wait for the SQL of one that it saw return."""
        self.attempts_ended(live, *keys)
        for each in live.committing:
            if each.step in keys:
                self.attempt_failed(live, each.step)

    # -- hosts that are gone

    def take_back(self, host: int) -> Iterator[tuple[int, LiveInstance, list[AttemptStarted]]]:
        """Takes back all that a host had in hand: its activations, with the attempts under way."""
        for number, live in list(self._live.items()):
            if live.host == host:
                attempts = [started for started in live.attempts.values() if started is not None]
                self._take_back(live)
                yield number, live, attempts

    def _take_back(self, live: LiveInstance) -> None:
        self._live.pop(live.activation or 0, None)
        live.activation = None
        live.resting = False
        live.attempts.clear()
        live.held.clear()
        live.behind_sql.clear()

"""Activations of a partition: instances ready for a host, held runs, and running attempts."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from enum import IntEnum
from typing import TypeAlias

from headwater.processors.runs.host_messages import (
    AbandonAttempt,
    AttemptStarted,
    Evict,
    HostMessage,
    PollProgress,
)
from headwater.processors.runs.state import Run
from headwater.schemas.statuses import RunStatus
from headwater.streams.engine.effects import Staging
from headwater.streams.engine.live_instances import LiveInstance
from headwater.streams.engine.timer_queue import TimerQueue

#: Priority of an instance, since when it is ready, its sequence number, its key.
_Ready: TypeAlias = tuple["Priority", int, int, str]


class Priority(IntEnum):
    """Priorities of ready instances: runs that continue come before runs that start."""

    CONTINUE = 0
    BEGIN = 1


class ReadyInstances:
    """Instances of one owner that wait for their hosts, by the number of the host."""

    def __init__(self) -> None:
        self._queues: dict[int, list[_Ready]] = defaultdict(list)
        self._count = 0

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def put(self, host: int, key: str, priority: Priority, at_ms: int) -> None:
        """Queue an instance that is ready since a time."""
        self._count += 1
        heapq.heappush(self._queues[host], (priority, at_ms, self._count, key))

    def hosts(self) -> set[int]:
        """Return the numbers of hosts with waiting instances."""
        return {host for host, queue in self._queues.items() if queue}

    def urgency(self, closed: Collection[int] = ()) -> tuple[Priority, int] | None:
        """Return the priority of the first instance with an open host, and its time."""
        queue = self._first(closed)
        return queue[0][:2] if queue else None

    def pop(self, closed: Collection[int] = ()) -> str | None:
        """Remove and return the key of the first instance with an open host."""
        queue = self._first(closed)
        return heapq.heappop(queue)[3] if queue else None

    def _first(self, closed: Collection[int]) -> list[_Ready]:
        if not self:
            return []
        waiting = [queue for host, queue in self._queues.items() if queue and host not in closed]
        return min(waiting, key=lambda queue: queue[0], default=[])


# -- activations


class Activations:
    """The activations of one owner.

    Messages to hosts are staged, and sent when the events that caused them are durable. A run that
    is paused, or has idle code, is sent nothing: messages for it are held until it continues.

    Args:
        timers: Timers of the owner.
        staging: Batch of the owner.
        number: Returns a number for a host that no other activation of the process has.
        host_of: Returns the number of the host that has the code of a run, or None.
    """

    def __init__(
        self,
        timers: TimerQueue,
        staging: Staging,
        number: Callable[[int], int],
        host_of: Callable[[Run], int | None],
    ) -> None:
        self._timers = timers
        self._staging = staging
        self._number = number
        self._host_of = host_of
        self._live: dict[int, LiveInstance] = {}
        self.ready = ReadyInstances()
        #: Instances that could continue if their code were available here, by workflow.
        self.without_code: dict[str, set[str]] = {}

    def numbers(self) -> list[int]:
        """Return the numbers of all current activations."""
        return list(self._live)

    def find(self, number: int) -> LiveInstance | None:
        """Return the instance of an activation, unless that has ended."""
        return self._live.get(number)

    def are_running(self) -> bool:
        """Whether the code of an instance, or one of its steps, is running."""
        return any(
            not live.resting and live.run.status is not RunStatus.PAUSED
            for live in self._live.values()
        )

    def hosts(self) -> set[int]:
        """Return the numbers of hosts that hold an instance, or will be assigned one."""
        return {live.host for live in self._live.values()} | self.ready.hosts()

    # -- assignment to hosts

    def make_ready(self, live: LiveInstance, priority: Priority, at_ms: int) -> None:
        """Queue an instance for its host, unless its code is running already.

        An instance with a lost host waits for the SQL of its steps, so as not to start them
        again.
        """
        is_active = live.committing if live.activation is None else not live.resting
        if live.ready or is_active:
            return
        live.ready = True
        self.ready.put(self._host_of(live.run) or 0, live.key, priority, at_ms)

    def yield_back(self, live: LiveInstance) -> None:
        """Release an instance from its host and queue it again."""
        self.release(live)
        self.make_runnable(live)

    def make_runnable(self, live: LiveInstance) -> None:
        """Queue an instance, with lower priority if nothing was recorded of its run."""
        priority = Priority.BEGIN if live.run.sequence == 1 else Priority.CONTINUE
        self.make_ready(live, priority, live.run.updated_at_ms)

    def take_without_code(self) -> list[str]:
        """Remove and return the instances that could not continue for lack of code."""
        keys_without_code = [key for keys in self.without_code.values() for key in keys]
        self.without_code.clear()
        return keys_without_code

    def assign(self, live: LiveInstance, now_ms: int, closed: Collection[int]) -> bool:
        """Have its host continue an instance. Return False if no host can."""
        host = self._host_of(live.run)
        if host is None:
            # It stays unassigned until its code is loaded here, or another worker owns it.
            self.without_code.setdefault(live.run.workflow, set()).add(live.key)
            return False
        if host in closed:
            self.make_runnable(live)  # Its code moved to another host meanwhile.
            return False
        if live.activation is not None and live.host != host:
            self.release(live)
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
        """Send a message to the host, or hold it until the run continues."""
        paused = live.run.status is RunStatus.PAUSED
        if live.activation is not None and not live.resting and not paused:
            self._staging.effect(message)
            return
        if live.activation is not None:
            live.held.append(message)
        if not paused:
            self.make_ready(live, Priority.CONTINUE, live.run.updated_at_ms)

    def release(self, live: LiveInstance) -> None:
        """Release an instance from its host."""
        if live.activation is not None:
            self._staging.effect(Evict(live.activation))
        self._unassign(live)

    # -- attempts

    def begin_attempts(self, live: LiveInstance, now_ms: int) -> None:
        """Have the host start due attempts, after assigning the run to it if necessary."""
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
        """Start the timeout of an attempt that the host reports as taking some time."""
        live.attempts[started.step.key] = started
        self._timers.watch(started, now_ms)

    def attempt_failed(self, live: LiveInstance, key: str) -> None:
        """Have the host drop an attempt, which may still be running, or may have returned."""
        if live.activation is not None:
            self._staging.effect(AbandonAttempt(live.activation, key))

    def attempts_ended(self, live: LiveInstance, *keys: str) -> None:
        """Stop the timeouts of the attempts of these steps."""
        if not live.attempts:
            return  # Most attempts are too short to be known.
        for key in keys:
            started = live.attempts.pop(key, None)
            if started is not None:
                self._timers.unwatch(started)

    def cancelled(self, live: LiveInstance, keys: Collection[str]) -> None:
        """Stop timeouts of cancelled attempts, and drop those with SQL that is being committed."""
        self.attempts_ended(live, *keys)
        for commit in live.committing:
            if commit.step in keys:
                self.attempt_failed(live, commit.step)

    # -- lost hosts

    def reclaim(self, host: int) -> Iterator[tuple[int, LiveInstance, list[AttemptStarted]]]:
        """Yield the activations of a lost host with their running attempts, and remove them."""
        for number, live in list(self._live.items()):
            if live.host == host:
                attempts = [started for started in live.attempts.values() if started is not None]
                self._unassign(live)
                yield number, live, attempts

    def _unassign(self, live: LiveInstance) -> None:
        self._live.pop(live.activation or 0, None)
        live.activation = None
        live.resting = False
        live.attempts.clear()
        live.held.clear()
        live.held_behind_sql.clear()

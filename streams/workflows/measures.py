"""Readiness and metrics of a workflow worker, read when a monitor requests them."""

from collections import Counter
from collections.abc import Callable

from headwater.monitoring import catalog
from headwater.monitoring.metrics import Gauge
from headwater.monitoring.monitor import Monitor
from headwater.streams.engine.driver import Driver
from headwater.streams.engine.turns import Partition
from headwater.streams.workflows.hosts import Hosts
from headwater.streams.workflows.housekeeping import Checkpoints


class Measures:
    """Measures a worker.

    Args:
        driver: Drives the partitions.
        hosts: The code hosts.
        checkpoints: Checkpoints of the partitions.
        clock: Returns the time in Unix milliseconds.
    """

    def __init__(
        self, driver: Driver, hosts: Hosts, checkpoints: Checkpoints, clock: Callable[[], int]
    ) -> None:
        self._driver = driver
        self._hosts = hosts
        self._checkpoints = checkpoints
        self._clock = clock

    def report_to(self, monitor: Monitor) -> None:
        """Let the worker be ready when its code is loaded, and set its gauges on request."""
        monitor.ready_when(self._hosts.readiness)
        monitor.measure(self._measure)

    def _measure(self) -> None:
        partitions = list(self._driver.partitions.values())
        for gauge, value in self._of_partitions().items():
            gauge.replace({(str(partition.number),): value(partition) for partition in partitions})
        catalog.HOST_MESSAGES_WAITING.set(self._driver.messages_waiting())
        without_code: Counter[str] = Counter()
        quarantined = 0
        for partition in partitions:
            quarantined += len(partition.owner.instances.quarantined)
            for workflow, keys in partition.owner.without_code.items():
                without_code[workflow] += len(keys)
        catalog.INSTANCES_QUARANTINED.set(quarantined)
        catalog.INSTANCES_WITHOUT_CODE.replace(
            {(workflow,): number for workflow, number in without_code.items()}
        )
        self._measure_hosts()

    def _of_partitions(self) -> dict[Gauge, Callable[[Partition], float]]:
        now_ms = self._clock()
        return {
            catalog.COMMANDS_WAITING: lambda partition: len(partition.commands),
            catalog.INSTANCES_IN_MEMORY: lambda p: p.owner.instances.count_in_memory(),
            catalog.TIMERS_LATE: lambda partition: _late_s(partition, now_ms),
            catalog.CHECKPOINT_AGE: self._checkpoints.age_s,
        }

    def _measure_hosts(self) -> None:
        held = self._hosts.threads_held()
        catalog.STEP_THREADS_HELD.replace({(app,): number for app, number in held.items()})
        catalog.CODE_HOSTS.replace(dict.fromkeys(self._hosts.states().items(), 1))


def _late_s(partition: Partition, now_ms: int) -> float:
    due_ms = partition.owner.next_due_ms()
    return 0 if due_ms is None else max(0, now_ms - due_ms) / 1_000

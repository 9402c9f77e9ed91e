"""Error containment: a command, message, timer or instance may fail while its partition continues.

Deciding is pure, so an error there changes nothing. An error while events are applied leaves an
inconsistent state: what was staged is rolled back, and the instance is *damaged* until its state is
restored from the log. An instance that is damaged repeatedly, or that cannot even be ended, is
quarantined.
"""

from typing import Final, NamedTuple

from headwater.processors.runs.limits import bounded
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.schemas.failures import INTERNAL
from headwater.schemas.history import Failure
from headwater.streams.engine.activations import Activations
from headwater.streams.engine.committing import Committer
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances
from headwater.streams.engine.quarantine import Incident, describe_error
from headwater.streams.engine.staging import Staging, StagingMark

#: How often an owner restores the state of one instance. The partition waits for each of these.
#: Three attempts are enough for transient errors such as a lack of memory.
DAMAGES_MAX: Final = 3


class Ending(NamedTuple):
    """How a run is to end: the failure, and the number of the attempt at ending it."""

    failure: Failure
    attempt: int


class Containment:
    """Contains the errors of one owner."""

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
    """Return the failure of a run whose decision failed."""
    message = f"{what} failed: {describe_error(error)}; the log of the worker has the traceback"
    return Failure(INTERNAL, bounded(message))

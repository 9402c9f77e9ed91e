"""Contains errors: one command, message, timer or instance may fail, and its partition continues.

Deciding is pure, so an error there changes nothing. An error while events are applied leaves a
state that is neither the one before nor the one after: what was staged is rolled back, and the
instance is *damaged* until its state is read again from the log. Of an instance that is damaged
again and again, or that cannot even end, nothing can be decided: it is quarantined.
"""

from typing import Final, NamedTuple

from headwater.processors.runs.limits import bounded
from headwater.schemas.errors import Disposition, HeadwaterError
from headwater.schemas.failures import INTERNAL
from headwater.schemas.history import Failure
from headwater.streams.engine.activations import Activations
from headwater.streams.engine.committing import Committer
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances
from headwater.streams.engine.quarantine import Incident, described
from headwater.streams.engine.staging import Staging, StagingMark

#: How often the state of one instance is read again by one owner. Each time its partition waits for
#: that; three are for what a moment's lack of memory may do.
DAMAGES_MAX: Final = 3


class Ending(NamedTuple):
    """How a run is to end: with a failure, and by which attempt at ending it."""

    failure: Failure
    attempt: int


class Containment:
    """The errors of one owner."""

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
        #: Damaged instances, with how their runs end once they are restored, if they do.
        self.damaged: dict[str, Ending | None] = {}

    def begin(self) -> StagingMark:
        """Begin work that may fail: `contain` undoes what is staged from now on."""
        self._committer.under_way = None
        return self._staging.mark()

    def contain(self, error: Exception, mark: StagingMark, kind: str, what: str) -> None:
        """Undo what was staged since a mark, and note the error; it is raised if others meet it.

        Args:
            error: The error.
            mark: From `begin`, before the work that failed.
            kind: What failed, a label of metrics.
            what: The same for people.
        """
        if isinstance(error, HeadwaterError) and error.disposition is Disposition.RETRY:
            # It concerns no instance but its partition, such as a store on disk that is torn.
            raise error
        self._staging.roll_back(mark)
        self._incidents.append(Incident(kind, what, error))
        under_way, self._committer.under_way = self._committer.under_way, None
        if under_way is None:
            return
        key, is_new = under_way
        live = self._instances.at_work(key)
        if live is None:
            return
        self._activations.let_go(live)
        if is_new:
            live.damaged = True
            self._instances.drop(key)
            return
        self._damages[key] = self._damages.get(key, 0) + 1
        if self._damages[key] > DAMAGES_MAX:
            self.quarantine(key, f"{what} failed: {described(error)}", error)
            return
        live.damaged = True
        self.damaged[key] = None

    def quarantine(self, key: str, reason: str, error: Exception | None = None) -> None:
        """Take an instance out of use."""
        self.damaged.pop(key, None)
        self._instances.quarantine(key, reason, error)
        self.release_quarantined()

    def release_quarantined(self) -> None:
        """Take instances that were quarantined out of the hands of hosts."""
        for each in self._instances.take_quarantined():
            if each.live is not None:
                self._activations.let_go(each.live)
            what = f"{each.key}: {each.reason}"
            self._incidents.append(Incident("quarantine", what, each.error, quarantined=True))

    def ends_later(self, live: LiveInstance, ending: Ending) -> bool:
        """Have the run of a damaged instance end when its state is there again; else False."""
        if live.key in self.damaged:
            self.damaged[live.key] = ending
        return live.damaged

    def take_incidents(self) -> list[Incident]:
        """Return the errors since the last call."""
        incidents, self._incidents = self._incidents, []
        return incidents


def failure_of(what: str, error: Exception) -> Failure:
    """Return what a run fails with of which something cannot be decided."""
    found = f"{what} failed: {described(error)}; the log of the worker has the traceback"
    return Failure(INTERNAL, bounded(found))

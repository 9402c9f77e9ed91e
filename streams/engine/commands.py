"""Decides the commands of one owner. Every command gets an outcome, even if an error occurs."""

from headwater.processors.runs.decisions import Rejection
from headwater.processors.runs.limits import bounded
from headwater.processors.runs.state import Run
from headwater.schemas.failures import INTERNAL
from headwater.schemas.history import (
    CommandRejected,
    CommandSent,
    DeleteInstance,
    FinishChild,
    GrantSlot,
    InstanceDeleted,
    instance_key,
)
from headwater.streams.engine.activations import Activations
from headwater.streams.engine.committing import Committer
from headwater.streams.engine.containment import Containment, Ending, failure_of
from headwater.streams.engine.deciding import CommandDecider
from headwater.streams.engine.effects import not_deleted
from headwater.streams.engine.live_instances import LiveInstance, LiveInstances
from headwater.streams.engine.refusal_notices import refusal_notice
from headwater.streams.engine.staging import Staging, StagingMark


class Commands:
    """Has the commands of one owner decided, and stages their outcomes."""

    def __init__(  # noqa: PLR0913, PLR0917, the parts that a command may change
        self,
        partition: int,
        decider: CommandDecider,
        committer: Committer,
        containment: Containment,
        instances: LiveInstances,
        staging: Staging,
        activations: Activations,
    ) -> None:
        self._partition = partition
        self._decider = decider
        self._committer = committer
        self._containment = containment
        self._instances = instances
        self._staging = staging
        self._activations = activations

    def receive(
        self, offset: int, sent: CommandSent, now_ms: int
    ) -> tuple[LiveInstance, Ending] | None:
        """Decide a command.

        Returns:
            An instance that would otherwise wait forever for this command, and how its run is to
            end; None if there is none.
        """
        key = instance_key(sent.workflow, sent.instance_id)
        mark = self._containment.begin()
        try:
            self._receive(offset, sent, key, now_ms)
        except Exception as error:  # noqa: BLE001, one command costs no partition
            return self._failed(error, mark, offset, sent, key, now_ms)
        return None

    def _receive(self, offset: int, sent: CommandSent, key: str, now_ms: int) -> None:
        live = self._instances.find(key)
        if live is None and key in self._instances.quarantined:
            self._receive_quarantined(offset, sent, key, now_ms)
            return
        if isinstance(sent.command, DeleteInstance):
            self._delete(offset, sent, sent.command.unchanged_since_ms, live, now_ms)
            return
        decision = self._decider.decide(live, sent, now_ms)
        if isinstance(decision, Rejection):
            self._reject(offset, sent, decision, live.run if live else None, now_ms)
            return
        live = self._committer.commit(
            live, sent.workflow, sent.instance_id, decision, offset, now_ms
        )
        self._staging.answer(self._partition, offset, sent, None, live.run)

    def _reject(
        self, offset: int, sent: CommandSent, rejection: Rejection, run: Run | None, now_ms: int
    ) -> None:
        rejection = Rejection(rejection.code, bounded(rejection.message))
        self._staging.note(offset, run, now_ms, CommandRejected(rejection.code, rejection.message))
        self._staging.answer(self._partition, offset, sent, rejection, run)
        if (notice := refusal_notice(sent, rejection, run, now_ms)) is not None:
            self._staging.effect(notice)

    def _failed(
        self,
        error: Exception,
        mark: StagingMark,
        offset: int,
        sent: CommandSent,
        key: str,
        now_ms: int,
    ) -> tuple[LiveInstance, Ending] | None:
        """Reject a command that cannot be decided."""
        what = f"{type(sent.command).__name__} for {key}"
        self._containment.contain(error, mark, "command", what)
        live = self._instances.in_memory(key)
        run = None if live is None or live.damaged else live.run
        failure = failure_of(what, error)
        rejection = Rejection(failure.name, failure.message)
        mark = self._containment.begin()
        try:
            self._reject(offset, sent, rejection, run, now_ms)
        except Exception as second:  # noqa: BLE001, see above
            self._containment.contain(second, mark, "notice", what)
            event = CommandRejected(rejection.code, rejection.message)
            self._staging.note(offset, None, now_ms, event)
            self._staging.answer(self._partition, offset, sent, rejection, None)
        if live is not None and isinstance(sent.command, FinishChild | GrantSlot):
            return live, Ending(failure, 0)
        return None

    def _receive_quarantined(self, offset: int, sent: CommandSent, key: str, now_ms: int) -> None:
        """Decide a command for a quarantined instance: it can only be deleted."""
        command = sent.command
        if isinstance(command, DeleteInstance) and command.unchanged_since_ms is None:
            names = (sent.workflow, sent.instance_id)
            self._staging.note(offset, None, now_ms, InstanceDeleted(), names)
            self._staging.answer(self._partition, offset, sent, None, None)
            self._instances.delete(key)
            return
        reason = self._instances.quarantined[key]
        message = f"{key} is quarantined, delete it or start another release: {reason}"
        self._reject(offset, sent, Rejection(INTERNAL, bounded(message)), None, now_ms)

    def _delete(
        self,
        offset: int,
        sent: CommandSent,
        since_ms: int | None,
        live: LiveInstance | None,
        now_ms: int,
    ) -> None:
        """Delete an instance, if everything that it had to send has been delivered.

        With `since_ms`, only if it has not changed since.
        """
        if live is not None and not live.may_be_deleted(since_ms):
            self._reject(offset, sent, not_deleted(live.run, since_ms), live.run, now_ms)
            return
        self._staging.note(offset, live.run if live else None, now_ms, InstanceDeleted())
        self._staging.answer(self._partition, offset, sent, None, None)
        if live is not None:
            self._activations.release(live)
            self._instances.delete(live.key)

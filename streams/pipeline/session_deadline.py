"""Deadline until which the partitions of a worker are certainly its own."""

from collections.abc import Callable

from headwater.schemas.errors import Disposition, HeadwaterError


class SessionExpired(HeadwaterError):
    """The process was suspended for so long that its partitions may have another owner."""

    disposition = Disposition.HALT
    code = "lease_lost"


class SessionDeadline:
    """Prevents a worker that was suspended from appending outdated state.

    Its partitions may have another owner, and its appends would hide newer rows. The pulse stops
    with the process, so the deadline is checked before every append and at every pulse, whichever
    comes first when the process resumes.
    """

    def __init__(self, *, valid_for_s: float, monotonic: Callable[[], float]) -> None:
        self._valid_for_s = valid_for_s
        self._monotonic = monotonic
        self._renewed: float | None = None

    def renew(self) -> None:
        """Renew the deadline; called by the pulse.

        Raises:
            SessionExpired: The last pulse was too long ago.
        """
        now = self._monotonic()
        self._check(now)
        # Not the clock again: a suspension since the check must not count as a pulse.
        self._renewed = now

    def check(self) -> None:
        """Check the deadline.

        Raises:
            SessionExpired: The last pulse was too long ago.
        """
        self._check(self._monotonic())

    def _check(self, now: float) -> None:
        if self._renewed is None:
            return
        paused_s = now - self._renewed
        if paused_s > self._valid_for_s:
            raise SessionExpired(
                f"expected a pulse every {self._valid_for_s} s, found none for {paused_s:.1f} "
                "s; usual cause: the process or its machine was suspended"
            )

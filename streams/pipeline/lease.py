"""The lease: whether the partitions of a worker are surely its own still."""

from collections.abc import Callable

from headwater.schemas.errors import Disposition, HeadwaterError


class LeaseLost(HeadwaterError):
    """The process stood still for so long that its partitions may have another owner."""

    disposition = Disposition.HALT
    code = "lease_lost"


class Lease:
    """Keeps a worker that was suspended from appending what its memory holds of old.

    Its partitions may have gone to another worker, whose newer rows these appends would hide. The
    pulse stops with the process, so the time since the last one tells: before each append, and at
    the next pulse, whichever comes first when the process goes on.
    """

    def __init__(self, *, valid_for_s: float, monotonic: Callable[[], float]) -> None:
        self._valid_for_s = valid_for_s
        self._monotonic = monotonic
        self._renewed: float | None = None

    def renew(self) -> None:
        """The pulse.

        Errors: LeaseLost.
        """
        now = self._monotonic()
        self._check(now)
        # Not the clock again: a stop since the check must not count as a pulse.
        self._renewed = now

    def check(self) -> None:
        """Passes while the partitions are surely ours.

        Errors: LeaseLost.
        """
        self._check(self._monotonic())

    def _check(self, now: float) -> None:
        if self._renewed is None:
            return
        stood_still = now - self._renewed
        if stood_still > self._valid_for_s:
            raise LeaseLost(
                f"expected a pulse every {self._valid_for_s} s, found none for {stood_still:.1f} "
                "s; usual cause: the process or its machine was suspended"
            )

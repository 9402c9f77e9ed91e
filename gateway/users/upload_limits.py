"""How much a user may upload: so many files and so many bytes an hour, used up and refilled."""

from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import Final

from headwater.gateway.http.problems import Problem

_HOUR_S: Final = 3_600.0
#: Users that are remembered: whoever was silent for an hour is as new, and some 200 bytes.
_USERS_MAX: Final = 100_000


class _Used:
    """What a user has used up, as of a moment; it drains to nothing within an hour."""

    __slots__ = ("at_s", "bytes", "files")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.files = 0.0
        self.bytes = 0.0


class UploadLimits:
    """Counts what users upload, in this process.

    Args:
        files: Files of a user in an hour.
        max_bytes: Bytes of a user's files in an hour.
        clock_s: A clock, in seconds.
    """

    def __init__(self, files: int, max_bytes: int, clock_s: Callable[[], float]) -> None:
        self._files = files
        self._max_bytes = max_bytes
        self._clock_s = clock_s
        self._users: OrderedDict[str, _Used] = OrderedDict()

    @property
    def remembered(self) -> int:
        """How many users are remembered."""
        return len(self._users)

    def begin(self, user_id: str) -> None:
        """Count a file that a user begins to upload.

        Raises:
            Problem: The user has uploaded too much; it says when a file is taken again.
        """
        used = self._used(user_id)
        wait_s = max(
            (used.files + 1 - self._files) * _HOUR_S / self._files,
            (used.bytes + 1 - self._max_bytes) * _HOUR_S / self._max_bytes,
        )
        if wait_s > 0:
            seconds = ceil(wait_s)
            raise Problem(
                "too_many_requests",
                f"expected at most {self._files} files and {self._max_bytes:,} bytes of yours "
                f"within an hour, found more; try again in {seconds} s",
                headers={"retry-after": str(seconds)},
            )
        used.files += 1

    def take(self, user_id: str, size: int) -> None:
        """Count the bytes of a file that has arrived."""
        self._used(user_id).bytes += size

    def _used(self, user_id: str) -> _Used:
        now_s = self._clock_s()
        used = self._users.pop(user_id, None) or _Used(now_s)
        # A clock that is set back refills nothing, and takes nothing away.
        drained = min(1.0, max(0.0, now_s - used.at_s) / _HOUR_S)
        used.files = max(0.0, used.files - drained * self._files)
        used.bytes = max(0.0, used.bytes - drained * self._max_bytes)
        used.at_s = now_s
        self._users[user_id] = used
        if len(self._users) > _USERS_MAX:
            self._users.popitem(last=False)
        return used

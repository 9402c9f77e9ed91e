"""Rate limit for uploads: files and bytes of a user in an hour (a leaky bucket)."""

from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import Final

from headwater.gateway.api.problems import Problem

_HOUR_S: Final = 3_600.0
#: Users in memory, about 200 bytes each. A user without uploads for an hour starts over.
_USERS_MAX: Final = 100_000


class _Used:
    """Usage of a user at a point in time; it drains to zero within an hour."""

    __slots__ = ("at_s", "bytes", "files")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.files = 0.0
        self.bytes = 0.0


class UploadLimits:
    """Counts the uploads of users in this process.

    Args:
        files: Files of a user in an hour.
        max_bytes: Bytes of a user's files in an hour.
        clock_s: Returns seconds.
    """

    def __init__(self, files: int, max_bytes: int, clock_s: Callable[[], float]) -> None:
        self._files = files
        self._max_bytes = max_bytes
        self._clock_s = clock_s
        self._users: OrderedDict[str, _Used] = OrderedDict()

    @property
    def remembered(self) -> int:
        """Number of users in memory."""
        return len(self._users)

    def begin(self, user_id: str) -> None:
        """Count a file at the beginning of its upload.

        Raises:
            Problem: The user has uploaded too much; it states when to try again.
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
                f"A user may upload {self._files} files and {self._max_bytes:,} bytes within an "
                f"hour; try again in {seconds} s.",
                headers={"retry-after": str(seconds)},
            )
        used.files += 1

    def add_bytes(self, user_id: str, size: int) -> None:
        """Count the bytes of an uploaded file."""
        self._used(user_id).bytes += size

    def _used(self, user_id: str) -> _Used:
        now_s = self._clock_s()
        used = self._users.pop(user_id, None) or _Used(now_s)
        # If the clock is set back, the usage does not change.
        drained = min(1.0, max(0.0, now_s - used.at_s) / _HOUR_S)
        used.files = max(0.0, used.files - drained * self._files)
        used.bytes = max(0.0, used.bytes - drained * self._max_bytes)
        used.at_s = now_s
        self._users[user_id] = used
        if len(self._users) > _USERS_MAX:
            self._users.popitem(last=False)
        return used

"""Error injection: failures of the stand-in on request."""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

#: Kinds of injected errors.
Kind = Literal["status", "stall", "die"]
_STATUS: Final = 500


class InjectedError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An error of the next requests.

    Attributes:
        kind: `status` answers with a status; `stall` delays the response; `die` ends the process.
        path: Prefix of the path of matching requests.
        query: Part of the query of matching requests.
        times: Number of requests.
        status: Status of the response.
        retry_after: Retry-After header of the response.
        seconds: Seconds for which a request stalls.
        after: Number of deliveries before the process ends.
    """

    kind: Kind
    path: str = "/"
    query: str = ""
    times: Annotated[int, msgspec.Meta(ge=1)] = 1
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] = _STATUS
    retry_after: str | None = None
    seconds: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 3_600.0
    after: Annotated[int, msgspec.Meta(ge=0)] = 0


class ErrorInjector:
    """The queue of errors to inject."""

    def __init__(self, first: Iterable[InjectedError] = ()) -> None:
        self._pending = list(first)

    def add(self, error: InjectedError) -> None:
        """Add an error after the pending ones."""
        self._pending.append(error)

    def clear(self) -> None:
        """Remove all pending errors."""
        self._pending.clear()

    def next_for(self, path: str, query: str) -> InjectedError | None:
        """Return the first error that matches a request, and consume it once."""
        for number, error in enumerate(self._pending):
            matches = path.startswith(error.path) and error.query in query
            if error.kind != "die" and matches:
                self._consume(number)
                return error
        return None

    def must_exit(self) -> bool:
        """Whether the process must exit before its next delivery."""
        for number, error in enumerate(self._pending):
            if error.kind == "die":
                if error.after == 0:
                    return True
                self._pending[number] = msgspec.structs.replace(error, after=error.after - 1)
                return False
        return False

    def _consume(self, number: int) -> None:
        error = self._pending[number]
        if error.times > 1:
            self._pending[number] = msgspec.structs.replace(error, times=error.times - 1)
        else:
            del self._pending[number]

"""Faults: how the stand-in fails, when it is told to."""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

#: What a fault may be.
Kind = Literal["status", "stall", "die"]
_STATUS: Final = 500


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of the next requests, of those whose path and query begin and go on so, or of all.

    Shape:  `status` answers them with a status, and with Retry-After where that is given; `stall`
            does not answer them for some seconds; `die` ends the process after so many deliveries.
    """

    kind: Kind
    path: str = "/"
    query: str = ""
    times: Annotated[int, msgspec.Meta(ge=1)] = 1
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] = _STATUS
    retry_after: str | None = None
    seconds: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 3_600.0
    after: Annotated[int, msgspec.Meta(ge=0)] = 0


class Faults:
    """The faults that are still to come."""

    def __init__(self, first: Iterable[Fault] = ()) -> None:
        self._left = list(first)

    def add(self, fault: Fault) -> None:
        """Fails as told, after all that it was told before."""
        self._left.append(fault)

    def clear(self) -> None:
        """Fails no more."""
        self._left.clear()

    def of_request(self, path: str, query: str) -> Fault | None:
        """What a request meets; it is spent then."""
        for number, fault in enumerate(self._left):
            meant = path.startswith(fault.path) and fault.query in query
            if fault.kind != "die" and meant:
                self._spend(number)
                return fault
        return None

    def dies_now(self) -> bool:
        """Whether the process is to end, before its next delivery."""
        for number, fault in enumerate(self._left):
            if fault.kind == "die":
                if fault.after == 0:
                    return True
                self._left[number] = msgspec.structs.replace(fault, after=fault.after - 1)
                return False
        return False

    def _spend(self, number: int) -> None:
        fault = self._left[number]
        if fault.times > 1:
            self._left[number] = msgspec.structs.replace(fault, times=fault.times - 1)
        else:
            del self._left[number]

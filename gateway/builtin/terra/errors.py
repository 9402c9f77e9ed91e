"""Errors of requests to Terra."""

from headwater.schemas.errors import Disposition, HeadwaterError


class TerraFailed(HeadwaterError):
    """Terra did not return a usable response; a retry may succeed.

    Attributes:
        status: Status of the last response; None if there was none.
    """

    disposition = Disposition.RETRY
    code = "terra_failed"

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TerraRefused(TerraFailed):
    """Terra refused a request; a retry cannot succeed."""

    disposition = Disposition.REJECT

    @property
    def is_unknown(self) -> bool:
        """Whether Terra does not know the object of the request."""
        return self.status == 404

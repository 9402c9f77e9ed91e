"""What goes wrong when Terra is asked, and what it means for whoever asks."""

from headwater.schemas.errors import Disposition, HeadwaterError


class TerraNotConfigured(HeadwaterError):
    """The settings do not say who we are to Terra."""

    disposition = Disposition.REJECT
    code = "terra_not_configured"


class TerraFailed(HeadwaterError):
    """Terra gave no usable answer; later it may.

    Shape:  status is that of its last answer, None if there was none.
    """

    disposition = Disposition.RETRY
    code = "terra_failed"

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TerraRefused(TerraFailed):
    """Terra refused a request, and would refuse it again."""

    disposition = Disposition.REJECT

    @property
    def is_unknown(self) -> bool:
        """Whether it refused because it does not know what the request is about."""
        return self.status == 404

"""Terra's address, credentials and rate, from the settings."""

from dataclasses import dataclass

from typing_extensions import override

from headwater.schemas.errors import Disposition, HeadwaterError


class TerraNotConfigured(HeadwaterError):
    """Terra's credentials are not set."""

    disposition = Disposition.REJECT
    code = "terra_not_configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class TerraAccess:
    """Configuration of Terra's API.

    Attributes:
        api: Base URL.
        dev_id: Developer id.
        api_key: API key.
        lab_field: Form field of an uploaded lab report.
        widget_path: Path that starts a widget session.
        rate: Requests a second of one process.
    """

    api: str
    dev_id: str
    api_key: str
    lab_field: str = "files"
    widget_path: str = "/auth/generateWidgetSession"
    rate: float = 10.0

    @override
    def __repr__(self) -> str:
        """Return a representation without the key."""
        return f"<Terra at {self.api}>"

    def require(self) -> None:
        """Check that the credentials are set.

        Raises:
            TerraNotConfigured: Some are missing; the message names them.
        """
        required = {"HEADWATER_TERRA_DEV_ID": self.dev_id, "HEADWATER_TERRA_API_KEY": self.api_key}
        missing = [name for name, value in required.items() if not value]
        if missing:
            raise TerraNotConfigured(
                f"set {' and '.join(missing)}: Terra's dashboard shows them; "
                "`headwater terra-stand-in` simulates Terra without them"
            )

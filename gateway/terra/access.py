"""Who we are to Terra, and how it is asked: what the settings say, as one value."""

from dataclasses import dataclass

from typing_extensions import override

from headwater.gateway.terra.errors import TerraNotConfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class TerraAccess:
    """Where Terra's API is, and what it wants to see.

    Units:  rate in requests per second, of one process.
    """

    api: str
    dev_id: str
    api_key: str
    lab_field: str = "files"
    widget_path: str = "/auth/generateWidgetSession"
    rate: float = 10.0

    @override
    def __repr__(self) -> str:
        """Without the key."""
        return f"<Terra at {self.api}>"

    def require(self) -> None:
        """Sees that Terra can be asked at all.

        Errors: TerraNotConfigured, which names what is missing.
        """
        given = {"HEADWATER_TERRA_DEV_ID": self.dev_id, "HEADWATER_TERRA_API_KEY": self.api_key}
        missing = [name for name, value in given.items() if not value]
        if missing:
            raise TerraNotConfigured(
                f"expected {' and '.join(missing)}, found nothing; Terra's dashboard has them, and "
                "`headwater terra-stand-in` plays Terra without any"
            )

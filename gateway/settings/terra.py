"""Settings of Terra's API and of uploaded files: locations, credentials and rate."""

from dataclasses import dataclass

from pydantic import Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings
from typing_extensions import override

from headwater.gateway.settings.patterns import FORM_FIELD, TERRA_API, URL_OR_PATH
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
        widget_path: Path that starts a widget session, or a URL on another host.
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


# -- settings


class TerraSettings(BaseSettings):
    """Access to Terra, and the location of files for it."""

    terra_api: str = Field(
        default="https://api.tryterra.co/v2",
        pattern=TERRA_API,
        description="Terra's API, version 2; `headwater up` imitates it without a developer id.",
    )
    terra_dev_id: str = Field(
        default="",
        description="Developer id at Terra; without one no requests are sent to Terra.",
    )
    terra_api_key: SecretStr = Field(default=SecretStr(""), description="Key of Terra's API.")
    terra_lab_field: str = Field(
        default="files",
        pattern=FORM_FIELD,
        description="Form field that Terra expects the file of a lab report in.",
    )
    terra_widget_path: str = Field(
        default="/auth/generateWidgetSession",
        pattern=URL_OR_PATH,
        description="Where a session to connect a wearable begins: a path below Terra's API, or a "
        "URL on another host, to which Terra's credentials are sent.",
    )
    terra_rate: float = Field(
        default=10.0,
        gt=0,
        le=10_000,
        description="Largest number of requests per second that a process sends to Terra.",
    )
    lab_uploads: int = Field(
        default=60,
        ge=1,
        le=1_000_000,
        description="Lab reports that a user may upload in an hour, at each gateway.",
    )
    lab_upload_mib: int = Field(
        default=200,
        ge=10,
        le=1_000_000,
        description="MiB of lab reports that a user may upload in an hour, at each gateway.",
    )
    blobs: str = Field(
        default="",
        description="Location of uploaded files: a folder, or s3://bucket/prefix; empty uses "
        "the folder blobs of the data directory.",
    )

    @field_validator("blobs")
    @classmethod
    def _of_bucket(cls, value: str) -> str:
        if value.startswith("s3://") and not value.removeprefix("s3://").strip("/"):
            raise PydanticCustomError("not_bucket", "")
        return value

    @property
    def terra(self) -> TerraAccess:
        """Access to Terra."""
        return TerraAccess(
            api=self.terra_api,
            dev_id=self.terra_dev_id,
            api_key=self.terra_api_key.get_secret_value(),
            lab_field=self.terra_lab_field,
            widget_path=self.terra_widget_path,
            rate=self.terra_rate,
        )

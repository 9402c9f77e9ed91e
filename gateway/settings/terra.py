"""Settings of Terra's API and of uploaded files: locations and credentials."""

from pydantic import Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings

from headwater.gateway.settings.patterns import FORM_FIELD, TERRA_API, URL_PATH
from headwater.gateway.settings.terra_access import TerraAccess


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
        pattern=URL_PATH,
        description="Path, below Terra's API, that begins a session to connect a wearable.",
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

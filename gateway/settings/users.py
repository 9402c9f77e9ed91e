"""Settings of the verification of users' tokens."""

from pydantic import Field
from pydantic_settings import BaseSettings

from headwater.gateway.settings.patterns import JWKS


class UserSettings(BaseSettings):
    """Verification of users' tokens."""

    jwks: str = Field(
        default="",
        pattern=JWKS,
        description="Keys of the issuer of users' tokens: the URL or the file of its JWKS; empty "
        "accepts no tokens, but `headwater up` has its own issuer; http:// only on loopback.",
    )
    jwt_issuer: str = Field(
        default="",
        description="The issuer that users' tokens must name as iss; empty allows any on loopback.",
    )
    jwt_audience: str = Field(
        default="",
        description="The audience that users' tokens must name as aud; empty accepts tokens "
        "without one, only on loopback.",
    )

"""The settings of users' tokens: whose keys sign them, and for whom they are."""

from pydantic import Field
from pydantic_settings import BaseSettings

from headwater.gateway.patterns import JWKS


class UserSettings(BaseSettings):
    """Where users' tokens come from."""

    jwks: str = Field(
        default="",
        pattern=JWKS,
        description="Keys of the issuer of users' tokens: the URL or the file of its JWKS; empty "
        "takes no tokens, but `headwater up` has an issuer of its own; http:// only on loopback.",
    )
    jwt_issuer: str = Field(
        default="",
        description="The issuer that users' tokens must name as iss; empty takes any on loopback.",
    )
    jwt_audience: str = Field(
        default="",
        description="The audience that users' tokens must name as aud; empty takes those without, "
        "on loopback alone.",
    )

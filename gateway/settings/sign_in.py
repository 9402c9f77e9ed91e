"""Settings of the console's sign-in with an OpenID provider."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from headwater.gateway.settings.exposure import is_plain_http
from headwater.gateway.settings.patterns import ISSUER_OR_NONE

#: Roles that a group may have; they are those of `processors.api_keys`.
ROLES: Final = ("viewer", "operator", "admin")
#: Path of the console to which the provider sends browsers back.
CALLBACK: Final = "/console/oidc/callback"


class OidcOptions(NamedTuple):
    """Settings of the sign-in.

    Attributes:
        issuer: URL of the provider.
        client_id: Id of this console at the provider.
        client_secret: Its secret; empty for a public client.
        redirect_url: URL of this console's callback, as it is registered at the provider.
        scopes: Requested scopes, separated by spaces.
        claim: Claim of the id token with the groups of a person.
        roles: Role by group; `*` for everyone.
        session_s: Seconds after which a person signs in again.
    """

    issuer: str
    client_id: str
    client_secret: str
    redirect_url: str
    scopes: str
    claim: str
    roles: Mapping[str, str]
    session_s: int = 3600


class SignInSettings(BaseSettings):
    """Sign-in to the console."""

    oidc_issuer: str = Field(
        default="",
        pattern=ISSUER_OR_NONE,
        description="OpenID provider for the sign-in to the console: the URL that it names as its "
        "issuer; empty for sign-in with keys only; http:// only on loopback.",
    )
    oidc_client_id: str = Field(default="", description="Client id of the console there.")
    oidc_client_secret: SecretStr = Field(
        default=SecretStr(""), description="Its client secret; empty for a public client."
    )
    oidc_redirect_url: str = Field(
        default="",
        pattern=ISSUER_OR_NONE,
        description="URL of the console's callback, as registered at the provider: "
        f"https://HOST{CALLBACK}.",
    )
    oidc_scopes: str = Field(
        default="openid profile email",
        description="Requested scopes, separated by spaces; some providers need groups, too.",
    )
    oidc_claim: str = Field(
        default="groups", description="Claim of the id token with a person's groups."
    )
    oidc_roles: str = Field(
        default="",
        description="Roles by group, as sre=operator,platform=admin,*=viewer; * is everyone. A "
        "person without a role is not signed in.",
    )
    oidc_session_minutes: int = Field(
        default=60,
        ge=5,
        le=720,
        description="Minutes after which a person signs in again. A person who has left, or has "
        "another role now, keeps the old role for that long.",
    )

    @property
    def oidc(self) -> OidcOptions | None:
        """The sign-in; None without a provider.

        Raises:
            ValueError: The settings are not complete or not valid.
        """
        if not self.oidc_issuer:
            return None
        return OidcOptions(
            issuer=self.oidc_issuer,
            client_id=self.oidc_client_id,
            client_secret=self.oidc_client_secret.get_secret_value(),
            redirect_url=self.oidc_redirect_url,
            scopes=self.oidc_scopes,
            claim=self.oidc_claim,
            roles=_roles(self.oidc_roles),
            session_s=self.oidc_session_minutes * 60,
        )

    def oidc_problems(self) -> list[str]:
        """Return what is wrong with the settings of the sign-in."""
        if not self.oidc_issuer:
            return []
        problems = [
            f"HEADWATER_{name.upper()}: expected it with HEADWATER_OIDC_ISSUER, found nothing"
            for name in ("oidc_client_id", "oidc_redirect_url", "oidc_roles")
            if not getattr(self, name)
        ]
        if is_plain_http(self.oidc_issuer) or is_plain_http(self.oidc_redirect_url):
            problems.append(
                "HEADWATER_OIDC_ISSUER, HEADWATER_OIDC_REDIRECT_URL: expected https:// (http:// "
                "is accepted on loopback): codes and tokens could be read in transit"
            )
        if self.oidc_redirect_url and not self.oidc_redirect_url.endswith(CALLBACK):
            problems.append(
                f"HEADWATER_OIDC_REDIRECT_URL: expected a URL that ends with {CALLBACK}, found "
                f"'{self.oidc_redirect_url}'"
            )
        try:
            _roles(self.oidc_roles)
        except ValueError as error:
            problems.append(f"HEADWATER_OIDC_ROLES: {error}")
        return problems


def _roles(text: str) -> dict[str, str]:
    roles: dict[str, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        group, _, role = map(str.strip, pair.rpartition("="))
        if not group or role not in ROLES:
            raise ValueError(
                f"expected GROUP=ROLE, with a role of {', '.join(ROLES)}, found '{pair[:60]}'"
            )
        roles[group] = role
    return roles

"""Development on one machine: loopback addresses, and public secrets."""

import ipaddress
from collections.abc import Mapping
from typing import Final

#: They are public, so they are accepted only while the gateway listens on loopback.
DEVELOPMENT_SECRETS: Final[Mapping[str, str]] = {
    "terra_secrets": "dev-terra-secret",
    "admin_key": "dev-admin-key",
    "read_key": "dev-read-key",
    "workflow_key": "dev-workflow-key",
    "world_key": "dev-world-key",
}

#: The issuer of users' tokens of `headwater up`; its key is in the data folder.
DEVELOPMENT_ISSUER: Final = "urn:headwater:development-issuer"


def development_secret(provider: str) -> str:
    """Return the signing secret of a provider without a configured one, on loopback only."""
    return f"dev-{provider}-secret"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

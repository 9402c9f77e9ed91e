"""What is good for this machine alone: its addresses, and secrets that everybody knows."""

import ipaddress
from collections.abc import Mapping
from typing import Final

#: Known to everybody who reads this repository, so good for a laptop only.
DEVELOPMENT_SECRETS: Final[Mapping[str, str]] = {
    "terra_secrets": "dev-terra-secret",
    "admin_key": "dev-admin-key",
    "read_key": "dev-read-key",
    "workflow_key": "dev-workflow-key",
    "world_key": "dev-world-key",
}

#: The issuer of users' tokens that `headwater up` plays; its key lies in the folder of the data.
DEVELOPMENT_ISSUER: Final = "urn:headwater:development-issuer"


def development_secret(provider: str) -> str:
    """What signs the deliveries of a provider that was given no secret, on this machine alone."""
    return f"dev-{provider}-secret"


def is_loopback(host: str) -> bool:
    """Tells whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Protection of secrets: redacted addresses, weak and public keys, loopback, URLs without TLS."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

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


# -- redaction

_HIDDEN: Final = "(secret)"
#: Parameters of libpq that are secrets.
_SECRET: Final = frozenset({"password", "sslpassword", "oauth_client_secret"})

#: user:password@ of a URL. Users may forget to encode characters of a password, so everything up to
#: the last @ is hidden.
_ACCOUNT: Final = re.compile(r"(?P<before>(?:^|://)[^:/?#@=\s]*):(?!//).*@")
_PARAMETER: Final = re.compile(r"(?P<before>[?&])(?P<name>[^=&#]+)=[^&#]*")
#: name=value in libpq's other format, with optional spaces around = and quotes around the value.
_NAMED: Final = re.compile(r"(?P<name>\w+)\s*=\s*(?:'(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)*)")


def redacted(address: str) -> str:
    """Return an address, or several, without their secrets.

    Args:
        address: A URL, or names and values as libpq accepts them; other texts are not changed.
    """
    shown = _ACCOUNT.sub(rf"\g<before>:{_HIDDEN}@", address)
    if "://" in shown:
        return _PARAMETER.sub(_parameter, shown)
    return _NAMED.sub(_named, shown)


def _parameter(match: re.Match[str]) -> str:
    if unquote(match["name"]) not in _SECRET:
        return match[0]
    return f"{match['before']}{match['name']}={_HIDDEN}"


def _named(match: re.Match[str]) -> str:
    return f"{match['name']}={_HIDDEN}" if match["name"] in _SECRET else match[0]


# -- weak keys and addresses without TLS

#: Least number of characters of a key or signing secret if other machines reach the gateway.
SECRET_MIN: Final = 16
#: A random key has more different characters; of 16 random hexadecimal digits, 1 in 10^7 does not.
_DIFFERENT_MIN: Final = 5
#: Characters that must remain of a key without common words and sequences such as 1234.
_LEFT_MIN: Final = 6
#: Common words of keys that are made up in a hurry; a word precedes those that it contains.
_WORD: Final = re.compile(
    r"development|placeholder|passphrase|production|qwertyuiop|asdfghjkl|headwater|changeit|"
    r"changeme|iloveyou|operator|passw0rd|password|sunshine|workflow|console|default|"
    r"example|gateway|letmein|private|replace|staging|webhook|welcome|zxcvbnm|access|apikey|"
    r"dragon|master|monkey|please|qwerty|sample|secret|secure|server|admin|login|token|"
    r"world|demo|prod|read|root|temp|test|user|dev|key|pwd"
)


def weakness_of(secret: str, published: Iterable[str] = ()) -> str | None:
    """Return why a key or signing secret can be guessed; None if no reason is known.

    The check detects what people type, not every weak key: a random key passes, but not a key of
    common words, of one repeated part, or of a sequence.

    Args:
        secret: The key.
        published: Public keys, such as those of development.
    """
    if secret in published:
        return "published with Headwater"
    if len(secret) < SECRET_MIN:
        return f"shorter than {SECRET_MIN} characters"
    if len(set(secret)) < _DIFFERENT_MIN:
        return f"fewer than {_DIFFERENT_MIN} different characters"
    if _is_repetition(secret):
        return "one part repeated"
    if len(_without_sequences(_WORD.sub("", secret.lower()))) < _LEFT_MIN:
        return "common words or a sequence"
    return None


def _is_repetition(secret: str) -> bool:
    return any(
        secret == (secret[:length] * len(secret))[: len(secret)]
        for length in range(1, len(secret) // 2 + 1)
    )


def _without_sequences(text: str) -> str:
    """Return letters and digits of a text, without those that continue a sequence as abc or 321."""
    plain = [letter for letter in text if letter.isalnum()]
    return "".join(
        letter
        for before, letter in zip(["", *plain], plain, strict=False)
        if not before or abs(ord(letter) - ord(before)) > 1
    )


def is_plain_http(url: str) -> bool:
    """Return whether a URL sends data to another machine without TLS."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")

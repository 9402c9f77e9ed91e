"""Checks for what is safe on one machine only: weak keys, and addresses without TLS."""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from headwater.gateway.settings.loopback import is_loopback

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

"""Webhook signatures: one verifier for every scheme of `processors.signature_schemes`.

Nothing in a delivery is trusted before its signature. The verifier reads the raw bytes and a few
headers, never the meaning of the body, and rejects whenever in doubt: no secret, an ambiguous
header, an invalid time. A rejection has one of six reasons, in the order in which they are tested;
its message states what was expected and found, and never contains a secret or an expected
signature.
"""

import hmac
from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from headwater.processors.signature_schemes import SCHEMES, Encoding, HeaderForm, SignatureScheme

__all__ = [
    "SCHEMES",
    "Claim",
    "RefusalReason",
    "Refused",
    "SignatureScheme",
    "Verified",
    "key_of",
    "prove",
    "read_claim",
    "secret_of",
    "sign",
    "verify",
]

#: A signature is below 100 characters; the rest allows some thirty of them during a rotation.
MAX_HEADER_CHARS: Final = 4096

#: Unix seconds have 10 digits until 2286. Twelve keep milliseconds of the result within 64 bits.
MAX_TIME_DIGITS: Final = 12

#: How many characters of a header a message quotes.
_EXCERPT_CHARS: Final = 40


class RefusalReason(StrEnum):
    """Why a delivery is rejected."""

    MISSING_HEADER = "missing_header"
    MALFORMED_HEADER = "malformed_header"
    BAD_TIMESTAMP = "bad_timestamp"
    STALE = "stale"
    LENGTH_MISMATCH = "length_mismatch"
    SIGNATURE_MISMATCH = "signature_mismatch"


class Verified(msgspec.Struct, frozen=True):
    """A delivery that its producer signed.

    Attributes:
        sent_at_ms: Signed time in Unix milliseconds; None if the scheme signs no time.
        delivery_id: Signed id from a header; None if the scheme signs none.
    """

    sent_at_ms: int | None
    delivery_id: str | None


class Refused(msgspec.Struct, frozen=True):
    """A delivery that is not trusted; the response is 401."""

    reason: RefusalReason
    detail: str


#: The signed time as it is written, empty without one; the signatures that count.
_Read: TypeAlias = tuple[str, list[str]]


class Claim(msgspec.Struct, frozen=True):
    """Signature headers of a delivery: well formed and timely, but not verified yet.

    Attributes:
        head: Signed bytes before the body.
        signatures: Signatures, one of which has to match.
        unproven: The result if one matches.
    """

    head: bytes
    signatures: Sequence[str]
    unproven: Verified


def verify(
    scheme: SignatureScheme,
    headers: Mapping[str, str],
    raw: bytes,
    secrets: Sequence[str],
    now_s: float,
) -> Verified | Refused:
    """Verify the signature of a delivery.

    Hex signatures may be in upper case.

    Args:
        scheme: The signature scheme.
        headers: Headers with lowercase names.
        raw: The body as received.
        secrets: The secrets; any of them may have signed, so that one can be rotated without a gap.
            Without secrets every delivery is rejected.
        now_s: Current time in Unix seconds.

    Returns:
        The signed data, or a rejection. It raises nothing.
    """
    claim = read_claim(scheme, headers, now_s)
    return claim if isinstance(claim, Refused) else prove(scheme, claim, raw, secrets)


def read_claim(
    scheme: SignatureScheme, headers: Mapping[str, str], now_s: float
) -> Claim | Refused:
    """Check everything that is known before the body is received; the first half of `verify`."""
    read = _read_header(scheme, headers)
    if isinstance(read, Refused):
        return read
    time, signatures = read
    sent_at_ms, delivery_id, head = None, None, scheme.head
    if scheme.tolerance_s is not None:
        seconds = _read_time(scheme.tolerance_s, time, now_s)
        if isinstance(seconds, Refused):
            return seconds
        sent_at_ms = seconds * 1000
        head = head.replace("{t}", time)
    if scheme.signs_id:
        signed_id = _read_id(scheme, headers)
        if isinstance(signed_id, Refused):
            return signed_id
        delivery_id = signed_id
        head = head.replace("{id}", signed_id)
    fitting = [text for text in signatures if len(text) == scheme.signature_chars]
    if not fitting:
        return Refused(
            RefusalReason.LENGTH_MISMATCH,
            f"expected {scheme.signature_chars} {scheme.encoding} characters in "
            f"{scheme.signature_header}, found {len(signatures[0])}",
        )
    return Claim(head.encode("ascii"), fitting, Verified(sent_at_ms, delivery_id))


def prove(
    scheme: SignatureScheme, claim: Claim, raw: bytes, secrets: Sequence[str]
) -> Verified | Refused:
    """Verify a claim against the body; the second half of `verify`.

    Comparisons take constant time.
    """
    signed = claim.head + raw if claim.head else raw
    keys = 0
    for secret in secrets:
        key = key_of(scheme, secret)
        if not key:
            continue
        keys += 1
        digest = hmac.digest(key, signed, scheme.algorithm)
        for text in claim.signatures:
            if scheme.encoding is Encoding.HEX:
                same = hmac.compare_digest(digest.hex(), text.lower())
            else:
                same = hmac.compare_digest(b64encode(digest), text.encode())
            if same:
                return claim.unproven
    return Refused(
        RefusalReason.SIGNATURE_MISMATCH,
        f"expected a signature of the {len(signed)} signed bytes by one of {keys} secrets, found "
        f"{len(claim.signatures)} others; usual cause: another secret, or a body changed on the way"
        if keys
        else f"expected a secret to be configured for {scheme.name}, found none that is usable",
    )


def sign(
    scheme: SignatureScheme, raw: bytes, secret: str, at_s: int, delivery_id: str = ""
) -> dict[str, str]:
    """Return the headers with which a producer posts a body, as `verify` accepts them.

    Args:
        scheme: The signature scheme.
        raw: The body.
        secret: The secret.
        at_s: Signed time in Unix seconds.
        delivery_id: Signed id, if the scheme has one.

    Raises:
        ValueError: The secret is invalid; the message does not contain it.
    """
    key = key_of(scheme, secret)
    if not key:
        raise ValueError(f"expected a secret of {scheme.name}, found one that is not base64")
    head = scheme.head.replace("{t}", str(at_s)).replace("{id}", delivery_id)
    digest = hmac.digest(key, head.encode("ascii") + raw, scheme.algorithm)
    text = digest.hex() if scheme.encoding is Encoding.HEX else b64encode(digest).decode()
    return scheme.headers(text, str(at_s), delivery_id)


def _read_header(scheme: SignatureScheme, headers: Mapping[str, str]) -> _Read | Refused:
    """Read the signed time and the signatures that count: at least one, none of them empty."""
    names = (scheme.signature_header, *scheme.also_named)
    text = next((headers[name] for name in names if name in headers), None)
    if text is None:
        return _missing(scheme.signature_header)
    if not text.isascii() or len(text) > MAX_HEADER_CHARS:
        return _malformed(
            scheme.signature_header, f"at most {MAX_HEADER_CHARS} ASCII characters", text
        )
    if scheme.form is HeaderForm.PAIRS:
        read = _read_pairs(scheme, text)
    else:
        signatures = _read_signatures(scheme, text)
        time = "" if scheme.time_header is None else headers.get(scheme.time_header)
        if time is None:
            return _missing(str(scheme.time_header))
        read = time, signatures
    if isinstance(read, Refused) or read[1]:
        return read
    return _malformed(scheme.signature_header, f"a signature marked {scheme.label!r}", text)


def _read_pairs(scheme: SignatureScheme, text: str) -> _Read | Refused:
    """Read `t=1669742999,v1=aa…,v1=bb…`; other keys are ignored."""
    time: str | None = None
    signatures = []
    for part in text.split(","):
        key, equals, value = part.strip(" ").partition("=")
        if key == scheme.label and value:
            signatures.append(value)
        elif key == scheme.time_pair:
            if time is not None:
                # An attacker could exploit a guess which of the two was signed.
                return _malformed(scheme.signature_header, f"{key}= once", text)
            time = value
        elif not equals:
            return _malformed(scheme.signature_header, "key=value pairs", text)
    if time is None and scheme.time_pair is not None:
        return _malformed(scheme.signature_header, f"{scheme.time_pair}=", text)
    return time or "", signatures


def _read_signatures(scheme: SignatureScheme, text: str) -> list[str]:
    """Return the signatures of a header that contains only signatures."""
    if scheme.form is HeaderForm.LIST:
        pairs = (part.partition(",") for part in text.split(" "))
        return [value for label, _, value in pairs if label == scheme.label and value]
    value = text.removeprefix(scheme.label)
    return [value] if value and text.startswith(scheme.label) else []


def _read_time(tolerance_s: int, text: str, now_s: float) -> int | Refused:
    """Return the signed time in Unix seconds, if it is valid and within the tolerance."""
    # isdigit also accepts digits of other scripts and superscripts; int accepts signs, spaces and
    # underscores, and takes quadratic time for long texts.
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_TIME_DIGITS):
        return Refused(
            RefusalReason.BAD_TIMESTAMP,
            f"expected Unix seconds of 1 to {MAX_TIME_DIGITS} digits, found {_excerpt(text)}",
        )
    seconds = int(text)
    if not abs(now_s - seconds) <= tolerance_s:
        return Refused(
            RefusalReason.STALE,
            f"expected a time within {tolerance_s} s of {now_s:.0f}, found {seconds}; "
            "usual cause: a replayed delivery, or a clock that is wrong",
        )
    return seconds


def _read_id(scheme: SignatureScheme, headers: Mapping[str, str]) -> str | Refused:
    """Return the signed id."""
    name = scheme.id_header or ""
    value = headers.get(name)
    if value is None:
        return _missing(name)
    # The parts are signed with periods in between: with a period in the id, a part of the body
    # could pass as another signed part (Standard Webhooks, "Signature scheme").
    if not value or "." in value or len(value) > MAX_HEADER_CHARS or not value.isascii():
        return _malformed(name, "an id of ASCII characters without a full stop", value)
    return value


def key_of(scheme: SignatureScheme, secret: str) -> bytes:
    """Return the key of a secret; empty, which signs nothing, if the secret is invalid."""
    if scheme.secret_prefix is None:
        return secret.encode()
    try:
        return a2b_base64(secret.removeprefix(scheme.secret_prefix), strict_mode=True)
    except (Base64Error, ValueError):
        return b""


def secret_of(scheme: SignatureScheme, text: str) -> str:
    """Return a secret of the scheme with the text as key; the inverse of `key_of`."""
    if scheme.secret_prefix is None:
        return text
    return scheme.secret_prefix + b64encode(text.encode()).decode("ascii")


def _missing(name: str) -> Refused:
    return Refused(RefusalReason.MISSING_HEADER, f"expected the header {name}, found none")


def _malformed(name: str, expected: str, text: str) -> Refused:
    return Refused(
        RefusalReason.MALFORMED_HEADER,
        f"expected {expected} in {name}, found {_excerpt(text)}",
    )


def _excerpt(text: str) -> str:
    """Return the beginning of a text and its length, quoted for logs."""
    if len(text) <= _EXCERPT_CHARS:
        return ascii(text)
    return f"{len(text)} characters that start with {text[:_EXCERPT_CHARS]!a}"

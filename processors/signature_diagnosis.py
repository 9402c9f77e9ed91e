"""Explain why the signature of one request is valid or not, for people.

It tries more than a verifier may: variants of the received body. Secrets are identified by their
position, never by their value.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from headwater.processors.signature_schemes import Encoding, SignatureScheme
from headwater.processors.signatures import Claim, RefusalReason, Refused, prove, read_claim

#: A tolerance that accepts every signed time.
_ANY_TIME_S: Final = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Result of a diagnosis.

    Attributes:
        reason: Why the delivery is rejected; None if it is accepted.
        age_s: Age of the signature in seconds; None if no valid time is signed.
        secret: Position, from 1, of the secret that signed it; None if none did.
        body: Description of the signed body, if it is another than this one, else None.
    """

    reason: RefusalReason | None
    detail: str
    expected: str
    signed: str
    age_s: int | None
    secret: int | None
    body: str | None


def diagnose(
    scheme: SignatureScheme,
    headers: Mapping[str, str],
    raw: bytes,
    secrets: Sequence[str],
    now_s: float,
) -> Diagnosis:
    """Diagnose a signature.

    Args:
        scheme: The signature scheme.
        headers: Headers with lowercase names.
        raw: The body as received.
        secrets: The secrets.
        now_s: Current time in Unix seconds.
    """
    now = read_claim(scheme, headers, now_s)
    claim = now if isinstance(now, Claim) else _claim_at_any_time(scheme, headers)
    secret, body = (None, None) if claim is None else _explained(scheme, claim, raw, secrets)
    if isinstance(now, Refused):
        refused: Refused | None = now
    else:
        proved = prove(scheme, now, raw, secrets)
        refused = proved if isinstance(proved, Refused) else None
    sent_at_ms = None if claim is None else claim.unproven.sent_at_ms
    return Diagnosis(
        reason=None if refused is None else refused.reason,
        detail="" if refused is None else refused.detail,
        expected=expected_headers(scheme),
        signed=_signed(scheme, raw, claim),
        age_s=None if sent_at_ms is None else round(now_s - sent_at_ms / 1000),
        secret=secret,
        body=body,
    )


def expected_headers(scheme: SignatureScheme) -> str:
    """Return the headers of a scheme, as a producer writes them."""
    encoding = "hexadecimal" if scheme.encoding is Encoding.HEX else "base64"
    text = f"<{scheme.signature_chars} characters of {encoding}>"
    headers = scheme.headers(text, "<Unix seconds>", "<id>" if scheme.signs_id else "")
    return "\n".join(f"{name}: {value}" for name, value in headers.items())


def _claim_at_any_time(scheme: SignatureScheme, headers: Mapping[str, str]) -> Claim | None:
    """Return the claim of the headers if nothing but their time is wrong."""
    if scheme.tolerance_s is not None:
        scheme = replace(scheme, tolerance_s=_ANY_TIME_S)
    claim = read_claim(scheme, headers, 0)
    return claim if isinstance(claim, Claim) else None


def _explained(
    scheme: SignatureScheme, claim: Claim, raw: bytes, secrets: Sequence[str]
) -> tuple[int | None, str | None]:
    """Return the secret that made the signature, and the signed body if it is a variant."""
    for name, body in [(None, raw), *_variants(raw)]:
        for number, secret in enumerate(secrets, 1):
            if not isinstance(prove(scheme, claim, body, [secret]), Refused):
                return number, name
    return None, None


def _variants(raw: bytes) -> Iterable[tuple[str, bytes]]:
    """Yield variants of a body that tools produce, or from which they may have produced it."""
    yield "this body with one newline at its end", raw.rstrip(b"\r\n") + b"\n"
    yield "this body without the white space around it", raw.strip()
    yield "this body with LF for CRLF", raw.replace(b"\r\n", b"\n")
    yield "this body with CRLF for LF", raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    yield "this body without newlines", raw.replace(b"\r", b"").replace(b"\n", b"")
    yield "this body without its byte order mark", raw.removeprefix(b"\xef\xbb\xbf")
    yield "an empty body", b""
    for name, text in _as_json(raw):
        body = text.encode("utf-8", "surrogatepass")
        yield name, body
        yield f"{name}, with a newline at its end", body + b"\n"


def _as_json(raw: bytes) -> Iterable[tuple[str, str]]:
    """Yield the same JSON as other programs write it."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return
    for ascii_, letters in ((True, "escaped"), (False, "not escaped")):
        dump = partial(json.dumps, value, ensure_ascii=ascii_)
        words = f"this JSON, letters beyond ASCII {letters},"
        yield f"{words} without spaces", dump(separators=(",", ":"))
        yield f"{words} with a space after , and :", dump()
        yield f"{words} indented by 2", dump(indent=2)
        yield f"{words} indented by 4", dump(indent=4)


def _signed(scheme: SignatureScheme, raw: bytes, claim: Claim | None) -> str:
    """Describe what is signed."""
    if not scheme.head:
        return f"the {len(raw)} bytes of the body"
    if claim is None:
        return f"{scheme.head} and the {len(raw)} bytes of the body"
    head = claim.head.decode("ascii")
    return f"{head} and the {len(raw)} bytes of the body, {len(claim.head) + len(raw)} together"

"""Why a signature holds or not, for people who look at one request.

More is tried than a verifier may: bodies that are nearly the one that came. A secret is named by
its place, never by what it is.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from headwater.processors.signature_schemes import Encoding, SignatureScheme
from headwater.processors.signatures import (
    Claim,
    RefusalReason,
    Refused,
    prove,
    read_claim,
)

#: Further from its time than this no signature is.
_ANY_TIME_S: Final = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found.

    Shape:  reason is None for a delivery that is taken. `secret` is the place of the secret that
            signed it, from 1, and `body` what was signed instead of this body; each None if there
            is none.
    Units:  age_s in seconds; None where no time is signed, or none could be read.
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
    """Diagnoses a signature.

    Shape:  as `verify`; header names in lower case.
    Units:  now_s in Unix seconds.
    """
    now = read_claim(scheme, headers, now_s)
    claim = now if isinstance(now, Claim) else _claim_of_its_time(scheme, headers)
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
    """The headers of a scheme, as a producer writes them."""
    encoding = "hexadecimal" if scheme.encoding is Encoding.HEX else "base64"
    text = f"<{scheme.signature_chars} characters of {encoding}>"
    headers = scheme.headers(text, "<Unix seconds>", "<id>" if scheme.signs_id else "")
    return "\n".join(f"{name}: {value}" for name, value in headers.items())


def _claim_of_its_time(scheme: SignatureScheme, headers: Mapping[str, str]) -> Claim | None:
    """What the headers claim, if nothing but their time is wrong."""
    if scheme.tolerance_s is not None:
        scheme = replace(scheme, tolerance_s=_ANY_TIME_S)
    claim = read_claim(scheme, headers, 0)
    return claim if isinstance(claim, Claim) else None


def _explained(
    scheme: SignatureScheme, claim: Claim, raw: bytes, secrets: Sequence[str]
) -> tuple[int | None, str | None]:
    """The secret that explains the signature, and the body that it is of, if it is another."""
    for name, body in [(None, raw), *_near(raw)]:
        for number, secret in enumerate(secrets, 1):
            if not isinstance(prove(scheme, claim, body, [secret]), Refused):
                return number, name
    return None, None


def _near(raw: bytes) -> Iterable[tuple[str, bytes]]:
    """Bodies that tools make of this one, or from which they made it."""
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
    """The same JSON, as other programs write it."""
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
    """What is signed, in words."""
    if not scheme.head:
        return f"the {len(raw)} bytes of the body"
    if claim is None:
        return f"{scheme.head} and the {len(raw)} bytes of the body"
    head = claim.head.decode("ascii")
    return f"{head} and the {len(raw)} bytes of the body, {len(claim.head) + len(raw)} together"

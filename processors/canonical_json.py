"""Canonical text of JSON values, as in RFC 8785, and its hash.

Numbers are IEEE 754 doubles there, written as ECMAScript writes them, so 1, 1.0 and 1e0 are equal,
and so are integers that are the same double. Names are in the order of their UTF-16 code
units.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

#: Integers that have one text as an integer and as a double.
_EXACT_MAX: Final = 2**53
#: Powers of ten between which ECMAScript writes numbers without an exponent.
_SMALLEST: Final = -6
_LARGEST: Final = 21

_quoted: Final = json.encoder.encode_basestring


def canonical_hash(value: Any) -> str:  # noqa: ANN401 (any JSON)
    """Return the SHA-256 of the canonical text of a JSON value, in hexadecimal."""
    return hashlib.sha256(canonical_text(value).encode(errors="surrogatepass")).hexdigest()


def canonical_text(value: Any) -> str:  # noqa: ANN401 (any JSON)
    """Return the canonical text of a JSON value.

    Raises:
        ValueError: A number is NaN or infinite.
    """
    kind = type(value)
    if kind is str:
        return _quoted(value)
    if kind is dict:
        members = [f"{_quoted(name)}:{canonical_text(value[name])}" for name in _ordered(value)]
        return f"{{{','.join(members)}}}"
    if kind is list:
        return f"[{','.join([canonical_text(item) for item in value])}]"
    if kind is int and -_EXACT_MAX <= value <= _EXACT_MAX:
        return str(value)
    return _number(value) if kind in {int, float} else json.dumps(value)


def _ordered(names: Iterable[str]) -> list[str]:
    """Return names in the order of their UTF-16 code units, in which ASCII is as in Python."""
    if "".join(names).isascii():
        return sorted(names)
    return sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def _number(value: float) -> str:
    """Return a number as ECMAScript writes it: the shortest digits that denote the double.

    An integer that no double can hold keeps its digits.
    """
    try:
        double = float(value)
    except OverflowError:
        return str(value)
    if not math.isfinite(double):
        raise ValueError(f"expected a finite number, found {double}")
    if double == 0:
        return "0"
    # `repr` has the shortest digits.
    _, decimals, exponent = Decimal(repr(abs(double))).normalize().as_tuple()
    digits, sign = "".join(map(str, decimals)), "-" if double < 0 else ""
    point = len(digits) + int(exponent)
    if _SMALLEST < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if 0 < point <= _LARGEST:
        whole, fraction = digits[:point].ljust(point, "0"), digits[point:]
        return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{sign}{mantissa}e{point - 1:+d}"

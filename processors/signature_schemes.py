"""Signature schemes as data: those that many providers share or that are well known.

Source: Stripe's, GitHub's, Shopify's, Slack's and Terra's webhook documentation; the Standard
Webhooks specification 1.0.0.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

#: Five minutes, in both directions: what producers that sign a time recommend, and what the
#: reference libraries of Standard Webhooks enforce.
TOLERANCE_S: Final = 300


class HeaderForm(StrEnum):
    """Format of the signature header."""

    PAIRS = "pairs"
    PREFIX = "prefix"
    PLAIN = "plain"
    LIST = "list"


class Encoding(StrEnum):
    """Encoding of the signature."""

    HEX = "hex"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureScheme:
    """Signature scheme of one producer.

    Attributes:
        label: Marks the signatures that count: a key of PAIRS, a version of LIST, the text before
            the signature in PREFIX.
        template: What is signed, ending with `{raw}`; `{t}` comes from the pair `time_pair` or the
            header `time_header`, `{id}` from `id_header`.
        id_header: If the template does not contain `{id}`, it is not signed: useful for logs, but
            not for deduplication.
        tolerance_s: Accepted difference to the signed time in seconds, in both directions; None if
            no time is signed.
        secret_prefix: If set, a secret is base64 after this optional prefix, else plain text.
        also_named: Other names of the signature header, read if that one is missing.

    Raises:
        ValueError: The scheme contradicts itself.
    """

    name: str
    signature_header: str
    form: HeaderForm
    label: str = ""
    template: str = "{raw}"
    time_pair: str | None = None
    time_header: str | None = None
    id_header: str | None = None
    algorithm: str = "sha256"
    encoding: Encoding = Encoding.HEX
    tolerance_s: int | None = None
    secret_prefix: str | None = None
    also_named: tuple[str, ...] = ()
    head: str = field(init=False, repr=False)
    signs_id: bool = field(init=False, repr=False)
    signature_chars: int = field(init=False, repr=False)
    header_names: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Compute what every delivery needs."""
        head, raw, rest = self.template.partition("{raw}")
        if not raw or rest:
            raise ValueError(f"{self.name}: expected a template that ends with {{raw}}, once")
        timed = self.time_pair is not None or self.time_header is not None
        if not timed == ("{t}" in head) == (self.tolerance_s is not None):
            raise ValueError(f"{self.name}: a time needs a source, {{t}} in the template, a limit")
        if "{id}" in head and self.id_header is None:
            raise ValueError(f"{self.name}: expected a header for {{id}}")
        size = hashlib.new(self.algorithm).digest_size
        chars = 2 * size if self.encoding is Encoding.HEX else 4 * -(-size // 3)
        object.__setattr__(self, "head", head)
        object.__setattr__(self, "signs_id", "{id}" in head)
        object.__setattr__(self, "signature_chars", chars)
        others = [name for name in (self.time_header, self.id_header) if name is not None]
        names = (self.signature_header, *self.also_named, *others)
        object.__setattr__(self, "header_names", names)

    def headers(self, signature: str, time: str, delivery_id: str = "") -> dict[str, str]:
        """Return the headers of a delivery, as its producer writes them."""
        pair = "" if self.time_pair is None else f"{self.time_pair}={time},"
        written = {
            HeaderForm.PAIRS: f"{pair}{self.label}={signature}",
            HeaderForm.PREFIX: f"{self.label}{signature}",
            HeaderForm.PLAIN: signature,
            HeaderForm.LIST: f"{self.label},{signature}",
        }
        headers = {self.signature_header: written[self.form]}
        if self.time_header is not None:
            headers[self.time_header] = time
        if self.id_header is not None and delivery_id:
            headers[self.id_header] = delivery_id
        return headers


def _standard(name: str, prefix: str) -> SignatureScheme:
    """Return the scheme of Standard Webhooks, or of Svix, which names its headers differently."""
    return SignatureScheme(
        name=name,
        signature_header=f"{prefix}-signature",
        form=HeaderForm.LIST,
        label="v1",
        template="{id}.{t}.{raw}",
        time_header=f"{prefix}-timestamp",
        id_header=f"{prefix}-id",
        encoding=Encoding.BASE64,
        tolerance_s=TOLERANCE_S,
        secret_prefix="whsec_",  # noqa: S106, prefix of every such secret
    )


_ALL: Final = (
    _standard("standard-webhooks", "webhook"),
    _standard("svix", "svix"),
    SignatureScheme(
        name="stripe",
        signature_header="stripe-signature",
        form=HeaderForm.PAIRS,
        label="v1",
        template="{t}.{raw}",
        time_pair="t",
        tolerance_s=TOLERANCE_S,
        # A Stripe secret starts with whsec_ too, but is used unchanged.
    ),
    SignatureScheme(
        name="github",
        signature_header="x-hub-signature-256",
        form=HeaderForm.PREFIX,
        label="sha256=",
        id_header="x-github-delivery",
    ),
    SignatureScheme(
        name="shopify",
        signature_header="x-shopify-hmac-sha256",
        form=HeaderForm.PLAIN,
        id_header="x-shopify-webhook-id",
        encoding=Encoding.BASE64,
    ),
    SignatureScheme(
        name="slack",
        signature_header="x-slack-signature",
        form=HeaderForm.PREFIX,
        label="v0=",
        template="v0:{t}:{raw}",
        time_header="x-slack-request-timestamp",
        tolerance_s=TOLERANCE_S,
    ),
    SignatureScheme(
        name="terra",
        signature_header="terra-signature",
        also_named=("x-terra-signature",),  # As some of Terra's own receivers read it.
        form=HeaderForm.PAIRS,
        label="v1",
        template="{t}.{raw}",
        time_pair="t",
        tolerance_s=TOLERANCE_S,
    ),
    # Of no particular producer: a scheme that a custom program can sign with in one line.
    SignatureScheme(name="plain", signature_header="x-signature", form=HeaderForm.PLAIN),
)

#: Schemes by name.
SCHEMES: Final[Mapping[str, SignatureScheme]] = MappingProxyType(
    {scheme.name: scheme for scheme in _ALL}
)

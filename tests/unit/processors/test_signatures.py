"""Signatures, against the vectors that the producers publish and against odd headers."""

import hmac
from base64 import b64encode
from collections.abc import Sequence

import pytest

from headwater.processors.providers.terra.provider import TERRA
from headwater.processors.signature_schemes import Encoding, HeaderForm
from headwater.processors.signatures import (
    MAX_HEADER_CHARS,
    SCHEMES,
    Refused,
    SignatureScheme,
    Verified,
    sign,
    verify,
)

TERRA_SECRET = "66142e0c2960f788b19830807d4aa25cfd27a610ec65fd36"
TERRA_TIME = 1669742999
TERRA_SIGNATURE = "c885ce58891b69ab5b6c8fc7536544f4f515f2e22ec811152849295b3d995c93"
TERRA_BODY = (
    b'{"user": {"last_webhook_update": null, "provider": "FITBIT", '
    b'"user_id": "d81ea08d-ad4d-44bd-8394-ee4b68a3f96f", "scopes": null}, "type": "deauth", '
    b'"status": "success", "message": "User has deauthenticated", "version": "2022-03-16"}'
)
FORGED_HEADER = "t=1669743290,v1=27107029cb01871b164fc70b2065aee1fb4f6008b76c77888825b512fbdc7de1"
FORGED_BODY = (
    b'{"status": "success", "user": {"scopes": null, "last_webhook_update": null, '
    b'"provider": null, "user_id": "26fd4019-5e74-4087-9433-c728938f194d"}, "type": "deauth", '
    b'"message": "User has deauthenticated", "version": "2022-03-16"}'
)
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554"
    b"%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121."
    b"803a0bc887a14d10d2c447fce8b6703c"
)
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
STANDARD_SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
STANDARD_BODY = b'{"test": 2432232314}'
STANDARD_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
STANDARD_TIME = 1614265330


def terra(
    header: str | None, *, secrets: Sequence[str] = (TERRA_SECRET,), now_s: float = TERRA_TIME
):
    headers = {} if header is None else {"terra-signature": header}
    return verify(TERRA.scheme, headers, TERRA_BODY, secrets, now_s)


def standard(prefix: str = "webhook", secret: str = STANDARD_SECRET, **changed: str | None):
    headers = {
        "id": STANDARD_ID,
        "timestamp": str(STANDARD_TIME),
        "signature": STANDARD_SIGNATURE,
    } | changed
    named = {f"{prefix}-{name}": value for name, value in headers.items() if value is not None}
    scheme = SCHEMES["svix" if prefix == "svix" else "standard-webhooks"]
    return verify(scheme, named, STANDARD_BODY, [secret], STANDARD_TIME)


def good(time: object = TERRA_TIME) -> str:
    """A signature of Terra's body that is right for whatever stands for the time."""
    return hmac.digest(TERRA_SECRET.encode(), f"{time}.".encode() + TERRA_BODY, "sha256").hex()


def test_the_published_delivery_of_terra_is_verified():
    assert terra(f"t={TERRA_TIME},v1={TERRA_SIGNATURE}") == Verified(TERRA_TIME * 1000, None)


def test_the_published_forgery_of_terra_is_refused():
    headers = {"terra-signature": FORGED_HEADER}
    result = verify(TERRA.scheme, headers, FORGED_BODY, [TERRA_SECRET], 1669743290)
    assert isinstance(result, Refused)
    assert result.reason == "signature_mismatch"
    assert good() not in result.detail


@pytest.mark.parametrize("prefix", ["webhook", "svix"])
def test_the_published_delivery_of_svix_is_verified_with_its_signed_id(prefix: str):
    assert standard(prefix) == Verified(STANDARD_TIME * 1000, STANDARD_ID)


def test_the_published_delivery_of_github_is_verified_and_its_unsigned_id_is_not_believed():
    headers = {
        "x-hub-signature-256": "sha256="
        "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
        "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
    }
    secret = "It's a Secret to Everybody"
    result = verify(SCHEMES["github"], headers, b"Hello, World!", [secret], 0)
    assert result == Verified(None, None)
    assert not SCHEMES["github"].signs_id


def test_the_published_delivery_of_slack_is_verified():
    headers = {
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        "x-slack-request-timestamp": "1531420618",
    }
    secret = "8f742231b10e8888abcd99yyyzzz85a5"
    result = verify(SCHEMES["slack"], headers, SLACK_BODY, [secret], 1531420618)
    assert result == Verified(1531420618000, None)


def test_shopify_signs_the_body_alone_in_base64():
    signature = b64encode(hmac.digest(b"hush", b"{}", "sha256")).decode()
    headers = {"x-shopify-hmac-sha256": signature}
    assert verify(SCHEMES["shopify"], headers, b"{}", ["hush"], 0) == Verified(None, None)


def test_a_stripe_secret_is_used_as_it_stands():
    signature = hmac.digest(b"whsec_abc", b"7.{}", "sha256").hex()
    headers = {"stripe-signature": f"t=7,v1={signature},v0=old"}
    assert verify(SCHEMES["stripe"], headers, b"{}", ["whsec_abc"], 7) == Verified(7000, None)


@pytest.mark.parametrize(
    "header",
    [
        f"t={TERRA_TIME},v1={good().upper()}",
        f"t={TERRA_TIME}, v1={good()}",
        f"v1={good()},t={TERRA_TIME}",
        f"t={TERRA_TIME},v1={'0' * 64},v1={good()}",
        f"t={TERRA_TIME},v1={good()},v1={'0' * 64}",
        f"t={TERRA_TIME},v1=,v1={good()}",
        f"t={TERRA_TIME},v1=short,v1={good()}",
        f"t={TERRA_TIME},v0={'0' * 64},v1={good()}",
        f"t=00{TERRA_TIME},v1={good(f'00{TERRA_TIME}')}",
    ],
)
def test_a_header_with_one_good_signature_is_taken(header: str | None):
    assert terra(header) == Verified(TERRA_TIME * 1000, None)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (None, "missing_header"),
        ("", "malformed_header"),
        (good(), "malformed_header"),
        (f"v1={good()}", "malformed_header"),
        (f"t={TERRA_TIME}", "malformed_header"),
        (f"t={TERRA_TIME},", "malformed_header"),
        (f"t={TERRA_TIME},v1", "malformed_header"),
        (f"t={TERRA_TIME},v1=", "malformed_header"),
        (f"t={TERRA_TIME},v0={good()}", "malformed_header"),
        (f"t={TERRA_TIME},V1={good()}", "malformed_header"),
        (f"t={TERRA_TIME},t={TERRA_TIME},v1={good()}", "malformed_header"),
        (f"t={TERRA_TIME},t=1,v1={good()}", "malformed_header"),
        (f"t={TERRA_TIME},v1={good()[:-1]}é", "malformed_header"),
        (f"t={TERRA_TIME},v1={good()}" + ",v1=0" * MAX_HEADER_CHARS, "malformed_header"),
        (f"t=,v1={good('')}", "bad_timestamp"),
        (f"t=nan,v1={good('nan')}", "bad_timestamp"),
        (f"t=inf,v1={good('inf')}", "bad_timestamp"),
        (f"t=-{TERRA_TIME},v1={good(-TERRA_TIME)}", "bad_timestamp"),
        (f"t=+{TERRA_TIME},v1={good()}", "bad_timestamp"),
        (f"t={TERRA_TIME}.0,v1={good()}", "bad_timestamp"),
        (f"t=1_669_742_999,v1={good()}", "bad_timestamp"),
        (f"t= {TERRA_TIME},v1={good()}", "bad_timestamp"),
        (f"t={'9' * 400},v1={good('9' * 400)}", "bad_timestamp"),
        (f"t={TERRA_TIME - 301},v1={good(TERRA_TIME - 301)}", "stale"),
        (f"t={TERRA_TIME + 301},v1={good(TERRA_TIME + 301)}", "stale"),
        (f"t=0,v1={good(0)}", "stale"),
        (f"t=999999999999,v1={good(999999999999)}", "stale"),
        (f"t={TERRA_TIME},v1={good()[:-1]}", "length_mismatch"),
        (f"t={TERRA_TIME},v1={good()}0", "length_mismatch"),
        (f"t={TERRA_TIME},v1={good()}=", "length_mismatch"),
        (f"t={TERRA_TIME},v1={'g' * 64}", "signature_mismatch"),
        (f"t={TERRA_TIME},v1={good(TERRA_TIME - 1)}", "signature_mismatch"),
        (f"t={TERRA_TIME - 1},v1={good()}", "signature_mismatch"),
        (f"t=0{TERRA_TIME},v1={good()}", "signature_mismatch"),
    ],
)
def test_any_other_header_is_refused_with_its_reason(header: str | None, reason: str):
    result = terra(header)
    assert isinstance(result, Refused)
    assert result.reason == reason
    assert "expected" in result.detail
    assert "found" in result.detail
    assert result.detail.isprintable()
    assert len(result.detail) < 300


@pytest.mark.parametrize("away_s", [-300, -299.5, 0, 299.5, 300])
def test_the_window_is_five_minutes_both_ways_ends_included(away_s: float):
    result = terra(f"t={TERRA_TIME},v1={good()}", now_s=TERRA_TIME + away_s)
    assert isinstance(result, Verified)


@pytest.mark.parametrize("away_s", [-300.5, 300.5, float("nan")])
def test_a_time_outside_the_window_or_an_unreadable_clock_is_stale(away_s: float):
    result = terra(f"t={TERRA_TIME},v1={good()}", now_s=TERRA_TIME + away_s)
    assert isinstance(result, Refused)
    assert result.reason == "stale"


def test_any_of_several_secrets_verifies():
    assert isinstance(
        terra(f"t={TERRA_TIME},v1={good()}", secrets=("new", "", TERRA_SECRET)), Verified
    )


@pytest.mark.parametrize("secrets", [(), ("",), ("another",)])
def test_without_the_right_secret_everything_is_refused(secrets: Sequence[str]):
    # An empty secret is a key like any other to HMAC: whoever guesses it could sign.
    signed_by_none = hmac.digest(b"", f"{TERRA_TIME}.".encode() + TERRA_BODY, "sha256").hex()
    result = terra(f"t={TERRA_TIME},v1={good()},v1={signed_by_none}", secrets=secrets)
    assert isinstance(result, Refused)
    assert result.reason == "signature_mismatch"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"signature": None}, "missing_header"),
        ({"timestamp": None}, "missing_header"),
        ({"id": None}, "missing_header"),
        ({"id": ""}, "malformed_header"),
        ({"id": "msg_é"}, "malformed_header"),
        ({"id": f"{STANDARD_ID}.{STANDARD_TIME}"}, "malformed_header"),
        ({"id": "m" * 5000}, "malformed_header"),
        ({"id": "msg_another"}, "signature_mismatch"),
        ({"signature": ""}, "malformed_header"),
        ({"signature": "v1"}, "malformed_header"),
        ({"signature": "v1,"}, "malformed_header"),
        ({"signature": STANDARD_SIGNATURE.replace("v1", "v1a")}, "malformed_header"),
        ({"signature": STANDARD_SIGNATURE.rstrip("=")}, "length_mismatch"),
        ({"signature": STANDARD_SIGNATURE.lower()}, "signature_mismatch"),
        ({"timestamp": "nan"}, "bad_timestamp"),
        ({"timestamp": "1"}, "stale"),
        ({"secret": "whsec_not base64"}, "signature_mismatch"),
        ({"secret": "whsec_"}, "signature_mismatch"),
        ({"secret": "whsec_é"}, "signature_mismatch"),
    ],
)
def test_standard_webhooks_are_refused_with_their_reason(changed: dict[str, object], reason: str):
    result = standard(**changed)
    assert isinstance(result, Refused)
    assert result.reason == reason


def test_standard_webhooks_take_a_list_of_signatures_and_a_secret_without_prefix():
    several = f"v1a,AAAA v1,{'A' * 43}= {STANDARD_SIGNATURE}"
    result = standard(signature=several, secret=STANDARD_SECRET.removeprefix("whsec_"))
    assert isinstance(result, Verified)


@pytest.mark.parametrize(
    ("header", "reason"),
    [("", "malformed_header"), ("sha256=", "malformed_header"), ("sha1=00", "malformed_header")],
)
def test_a_prefix_must_be_there_with_something_behind_it(header: str | None, reason: str):
    result = verify(SCHEMES["github"], {"x-hub-signature-256": header}, b"", ["s"], 0)
    assert isinstance(result, Refused)
    assert result.reason == reason


def test_pairs_without_a_time_are_a_scheme_like_any_other():
    scheme = SignatureScheme(
        name="mine", signature_header="x-mine", form=HeaderForm.PAIRS, label="sig"
    )
    signature = hmac.digest(b"s", b"{}", "sha256").hex()
    assert verify(scheme, {"x-mine": f"sig={signature}"}, b"{}", ["s"], 0) == Verified(None, None)


@pytest.mark.parametrize(
    "changed",
    [
        {"template": "{t}."},
        {"template": "{raw}."},
        {"template": "{raw}{raw}"},
        {"template": "{t}.{raw}"},
        {"template": "{t}.{raw}", "time_pair": "t"},
        {"template": "{raw}", "tolerance_s": 300},
        {"template": "{id}.{raw}"},
        {"time_header": "x-time"},
    ],
)
def test_a_scheme_that_contradicts_itself_cannot_be_made(changed: dict[str, object]):
    with pytest.raises(ValueError, match="mine"):
        SignatureScheme(name="mine", signature_header="x-mine", form=HeaderForm.PLAIN, **changed)


def test_every_scheme_is_named_once_and_its_headers_are_lower_case():
    assert set(SCHEMES) == {
        "standard-webhooks", "svix", "stripe", "github", "shopify", "slack", "terra", "plain",
    }  # fmt: skip
    for name, scheme in SCHEMES.items():
        assert scheme.name == name
        for header in (scheme.signature_header, scheme.time_header, scheme.id_header):
            assert header is None or header == header.lower()
        assert scheme.signature_chars == (64 if scheme.encoding is Encoding.HEX else 44)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda scheme: scheme.name)
def test_what_is_signed_by_a_scheme_holds_by_it(scheme: SignatureScheme):
    secret = "whsec_" + b64encode(b"secret").decode()
    headers = sign(scheme, b"{}", secret, 1_700_000_000, "msg_1")
    assert isinstance(verify(scheme, headers, b"{}", ["other", secret], 1_700_000_001), Verified)
    assert isinstance(verify(scheme, headers, b"{ }", [secret], 1_700_000_001), Refused)


def test_a_secret_that_is_none_signs_nothing_and_is_not_told():
    with pytest.raises(ValueError, match="found one that is not base64") as caught:
        sign(SCHEMES["svix"], b"{}", "whsec_?", 0)
    assert "?" not in str(caught.value)

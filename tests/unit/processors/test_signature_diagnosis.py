"""What is said of a captured request: the secret that signed it, and what was signed instead."""

import pytest

from headwater.processors.signature_diagnosis import diagnose
from headwater.processors.signature_schemes import SCHEMES, SignatureScheme
from headwater.processors.signatures import RefusalReason, sign

NOW_S = 1_700_000_000
BODY = b'{"type": "daily", "name": "\xc3\xa9"}'
SECRETS = ["whsec_bmV3", "whsec_b2xk"]
EVERY = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda scheme: scheme.name)


@EVERY
def test_what_is_taken_is_so_by_a_secret_that_is_named_by_its_place(scheme: SignatureScheme):
    headers = sign(scheme, BODY, SECRETS[1], NOW_S, "msg_1")
    result = diagnose(scheme, headers, BODY, SECRETS, NOW_S)
    assert (result.reason, result.secret, result.body) == (None, 2, None)
    assert not any(secret in repr(result) for secret in SECRETS)


@EVERY
@pytest.mark.parametrize(
    ("came", "signed"),
    [
        (BODY + b"\n", "this body without the white space around it"),
        (BODY.rstrip(b"}") + b"\r\n}", "this body with LF for CRLF"),
        (
            b'{"type":"daily","name":"\\u00e9"}',
            "this JSON, letters beyond ASCII not escaped, with a space after , and :",
        ),
        (b"\xef\xbb\xbf" + BODY, "this body without its byte order mark"),
    ],
)
def test_a_body_that_was_reformatted_on_the_way_is_recognized(
    scheme: SignatureScheme, came: bytes, signed: str
):
    original = came.replace(b"\r\n", b"\n") if b"\r\n" in came else BODY
    headers = sign(scheme, original, SECRETS[0], NOW_S, "msg_1")
    result = diagnose(scheme, headers, came, SECRETS, NOW_S)
    assert (result.reason, result.secret) == (RefusalReason.SIGNATURE_MISMATCH, 1)
    assert result.body == signed


def test_a_second_newline_at_the_end_is_recognized():
    headers = sign(SCHEMES["github"], b'{"a":  1}\n', "s", NOW_S)
    result = diagnose(SCHEMES["github"], headers, b'{"a":  1}\n\n', ["s"], NOW_S)
    assert (result.secret, result.body) == (1, "this body with one newline at its end")


def test_a_file_that_ended_with_a_newline_is_recognized_however_it_was_written_anew():
    headers = sign(SCHEMES["github"], b'{"a":1}\n', "s", NOW_S)
    result = diagnose(SCHEMES["github"], headers, b'{ "a": 1 }', ["s"], NOW_S)
    assert result.body is not None
    assert result.body.endswith("without spaces, with a newline at its end")


def test_of_a_stale_delivery_it_is_said_who_signed_it():
    headers = sign(SCHEMES["slack"], BODY, "s", NOW_S - 86_400)
    result = diagnose(SCHEMES["slack"], headers, BODY, ["s"], NOW_S)
    assert (result.reason, result.age_s) == (RefusalReason.STALE, 86_400)
    assert (result.secret, result.body) == (1, None)


def test_of_a_stranger_nothing_is_explained():
    headers = sign(SCHEMES["github"], BODY, "theirs", NOW_S)
    result = diagnose(SCHEMES["github"], headers, BODY, ["ours"], NOW_S)
    assert result.reason is RefusalReason.SIGNATURE_MISMATCH
    assert (result.secret, result.body, result.age_s) == (None, None, None)


def test_it_is_said_which_bytes_are_signed_and_which_headers_are_expected():
    terra = diagnose(SCHEMES["terra"], sign(SCHEMES["terra"], b"{}", "s", 5), b"{}", ["s"], 5)
    assert terra.signed == "5. and the 2 bytes of the body, 4 together"
    assert terra.expected == ("terra-signature: t=<Unix seconds>,v1=<64 characters of hexadecimal>")
    missing = diagnose(SCHEMES["svix"], {}, b"{}", ["whsec_bmV3"], 5)
    assert missing.reason is RefusalReason.MISSING_HEADER
    assert missing.signed == "{id}.{t}. and the 2 bytes of the body"
    assert missing.expected.split("\n") == [
        "svix-signature: v1,<44 characters of base64>",
        "svix-timestamp: <Unix seconds>",
        "svix-id: <id>",
    ]
    assert diagnose(SCHEMES["github"], {}, b"{}", ["s"], 5).signed == "the 2 bytes of the body"

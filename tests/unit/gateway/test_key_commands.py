"""`headwater keys`: what it sends, and that the text of a key is all that it prints to a pipe."""

import json
from typing import Any

import pytest

from tests.unit.gateway.command_line import headwater
from tests.unit.gateway.workflow_network import AT, Network, answer

TEXT = "hw_00_11"
KEY: dict[str, Any] = {
    "id": "key_00", "name": "ci", "project": "default", "state": "active", "role": None,
    "scopes": ["jobs:work"], "rateLimit": None, "createdAt": AT, "createdBy": "admin:1",
    "expiresAt": None, "lastUsedAt": None, "rotatedAt": None, "rotatedBy": None,
    "previousUntil": None,
    "revokedAt": None, "revokedBy": None,
}  # fmt: skip
SHOWN = KEY | {"key": TEXT}


def sent(network: Network) -> Any:  # noqa: ANN401 (JSON)
    return json.loads(network.asked[-1].content)


def test_a_key_is_printed_alone_and_what_it_may_do_beside_it():
    network = Network(answer(SHOWN))
    result = headwater(network, "keys", "create", "ci", "--scope", "jobs:work")
    assert result.stdout == f"{TEXT}\n"
    assert "key_00 (ci): jobs:work" in result.stderr
    assert "It does not expire" in result.stderr
    assert network.asked[-1].url.path == "/v1/keys"
    assert sent(network) == {"name": "ci", "scopes": ["jobs:work"]}


def test_role_expiry_and_limit_are_sent():
    network = Network(answer(SHOWN | {"expiresAt": AT, "previousUntil": AT}))
    options = ("--role", "viewer", "--expires", "90d", "--rate-limit", "600")
    headwater(network, "keys", "create", "amara", *options)
    body = sent(network)
    assert (body["role"], body["rateLimit"]) == ("viewer", 600)
    assert body["expiresAt"].endswith("+00:00")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "ci"), "expected --role or --scope, found neither"),
        (("create", "ci", "--scope", "jobs:play"), "jobs:work"),
        (("create", "ci", "--role", "viewer", "--expires", "soon"), "soon"),
        (("revoke", "key_00"), "expected --yes, or a terminal"),
    ],
)
def test_what_makes_no_sense_is_said(arguments: tuple[str, ...], said: str):
    result = headwater(Network(answer(KEY), answer({"keys": [KEY]})), "keys", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_keys_are_listed_without_their_texts():
    network = Network(answer({"keys": [KEY | {"lastUsedAt": AT}, KEY | {"role": "viewer"}]}))
    heading, first, second = headwater(network, "keys", "list", "--ended").stdout.splitlines()
    assert heading.split("\t")[:4] == ["id", "name", "state", "role"]
    assert "jobs:work" in first
    assert "never" in second
    assert str(network.asked[-1].url).endswith("/v1/keys?ended=true")


def test_a_rotation_sends_the_overlap():
    network = Network(answer(SHOWN | {"previousUntil": AT}))
    result = headwater(network, "keys", "rotate", "key_00", "--overlap", "1h")
    assert result.stdout == f"{TEXT}\n"
    assert "The previous text is accepted until" in result.stderr
    assert network.asked[-1].url.path == "/v1/keys/key_00/rotate"
    assert sent(network) == {"overlapSeconds": 3600}


def test_a_key_is_revoked_after_it_is_shown_when_it_was_used():
    child = KEY | {"id": "key_01", "createdBy": "key_00"}
    grandchild = KEY | {"id": "key_02", "createdBy": "key_01"}
    revoked = KEY | {
        "state": "revoked", "revokedKeys": ["key_01", "key_02"], "rotatedKeys": ["key_03"],
        "disabledEndpoints": ["ep_1"], "rotatedEndpoints": ["ep_2"],
    }  # fmt: skip
    network = Network(answer(KEY), answer({"keys": [grandchild, child, KEY]}), answer(revoked))
    result = headwater(network, "keys", "revoke", "key_00", "--yes")
    assert "key_00 (ci, never used) will be refused." in result.stderr
    also = "the keys that it created: key_01 (ci, never used), key_02 (ci, never used)."
    assert also in result.stderr
    assert "Revoked with it: key_01, key_02." in result.stderr
    assert "the texts of key_03, which are accepted" in result.stderr
    assert "Endpoints that they created were disabled: ep_1." in result.stderr
    assert "the secrets of ep_2: rotate" in result.stderr
    assert "revoked" in result.stdout
    assert [item.url.path for item in network.asked] == [
        "/v1/keys/key_00",
        "/v1/keys",
        "/v1/keys/key_00/revoke",
    ]

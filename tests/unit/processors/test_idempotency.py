"""What a request meets under an idempotency key, and which requests say the same."""

import json
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.canonical_json import canonical_hash
from headwater.processors.idempotency_keys import (
    Answered,
    Conflict,
    Pending,
    RequestState,
    StoredRequest,
    key_result,
    reservation,
)

RESERVED = reservation("run_1", "hash")
DONE = msgspec.structs.replace(RESERVED, state=RequestState.COMPLETED, status_code=202, body="{}")
REFUSED = msgspec.structs.replace(RESERVED, state=RequestState.REFUSED)


@pytest.mark.parametrize(
    ("found", "request_hash", "expected"),
    [
        (RESERVED, "hash", Pending("run_1")),
        (RESERVED, "other", Conflict()),
        (DONE, "hash", Answered("run_1", 202, "{}")),
        (DONE, "other", Conflict()),
        (REFUSED, "hash", Pending("run_1")),
    ],
)
def test_what_a_request_meets(found: StoredRequest, request_hash: str, expected: object) -> None:
    assert key_result(found, request_hash) == expected


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=15,
)  # fmt: skip


def shuffled(value: object, chance: random.Random) -> object:
    if isinstance(value, dict):
        names = list(value)
        chance.shuffle(names)
        return {name: shuffled(value[name], chance) for name in names}
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


@given(ANY_JSON, st.randoms())
def test_the_order_of_names_and_how_it_is_written_do_not_matter(
    value: object, chance: random.Random
) -> None:
    written = json.dumps(shuffled(value, chance), indent=1, ensure_ascii=chance.random() < 0.5)
    assert canonical_hash(json.loads(written)) == canonical_hash(value)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a": 1, "b": [1, 2]}', '{"b":[1,2],"a":1.0}', True),
        ("[1e2]", "[100]", True),
        ("[-0.0]", "[0]", True),
        ("1e22", "10000000000000000000000", True),
        ('{"a": null}', "{}", False),
        ("[1, 2]", "[2, 1]", False),
        ('"1"', "1", False),
        ("true", "1", False),
        ("0.1", "0.10000000000000002", False),
        ("9007199254740993", "9007199254740993.0", True),
        ("100000000000000000000000", "1e23", True),
        ("12345678901234567890", "12345678901234567890.0", True),
        ('"\\u00e9"', '"é"', True),
        ('"\\ud800"', '"?"', False),
    ],
)
def test_what_says_the_same(one: str, other: str, same: bool) -> None:
    hashes = [canonical_hash(json.loads(item)) for item in (one, other)]
    assert (hashes[0] == hashes[1]) is same

"""API keys: the format of a key, and what records about keys come to in any order."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.api_keys import (
    ApiKeys,
    Role,
    Scope,
    digest_of,
    id_of,
    key_text,
    renewed_text,
    scopes_of,
)
from headwater.schemas.api_keys import (
    ApiKeyCreated,
    ApiKeyRecord,
    ApiKeyRevoked,
    ApiKeyRotated,
    ApiKeyUsed,
)

NUMBER = bytes(range(10))
FIRST = key_text(NUMBER, b"\x01" * 32)
ID = "key_00010203040506070809"
SECOND = renewed_text(ID, b"\x02" * 32)
THIRD = renewed_text(ID, b"\x03" * 32)
CREATED = ApiKeyCreated(
    id=ID,
    project="shop",
    name="ci",
    role="",
    scopes=("jobs:work",),
    digest=digest_of(FIRST),
    expires_at_ms=0,
    rate_limit=0,
    by="admin:00000000",
    at_ms=1,
)


def rotated(text: str, until_ms: int, expires_at_ms: int = 0) -> ApiKeyRotated:
    return ApiKeyRotated(
        id=ID,
        digest=digest_of(text),
        previous_until_ms=until_ms,
        expires_at_ms=expires_at_ms,
        by="admin:00000000",
        at_ms=2,
    )


REVOKED = ApiKeyRevoked(id=ID, by="admin:00000000", at_ms=3)


def folded(*records: ApiKeyRecord) -> ApiKeys:
    keys = ApiKeys()
    for record in records:
        keys.apply(record)
    return keys


def is_accepted(keys: ApiKeys, text: str, now_ms: int = 10, project: str = "shop") -> bool:
    return keys.find(text, project, now_ms) is not None


def test_a_key_has_a_recognizable_text_with_its_id():
    assert FIRST == "hw_00010203040506070809_" + "01" * 32
    assert (id_of(FIRST), id_of(SECOND)) == (ID, ID)


@pytest.mark.parametrize(
    "text", ["", "hw_", FIRST[:-1], FIRST + "0", FIRST.upper(), "x" + FIRST, FIRST + "\n", "\ud800"]
)
def test_what_does_not_have_the_format_of_a_key_is_none(text: str):
    assert id_of(text) is None
    assert not is_accepted(folded(CREATED), text)


def test_only_the_digest_of_a_key_is_kept():
    assert FIRST.rpartition("_")[2] not in str(folded(CREATED).by_id)


def test_a_key_is_accepted_in_its_project_alone():
    keys = folded(CREATED)
    assert is_accepted(keys, FIRST)
    assert not is_accepted(keys, FIRST, project="another")
    assert not is_accepted(keys, SECOND)


def test_a_key_expires():
    keys = folded(msgspec.structs.replace(CREATED, expires_at_ms=10))
    assert is_accepted(keys, FIRST, now_ms=9)
    assert not is_accepted(keys, FIRST, now_ms=10)


def test_the_previous_text_is_accepted_until_its_time():
    keys = folded(CREATED, rotated(SECOND, until_ms=20))
    assert is_accepted(keys, SECOND)
    assert is_accepted(keys, FIRST, now_ms=19)
    assert not is_accepted(keys, FIRST, now_ms=20)
    assert is_accepted(keys, SECOND, now_ms=20)


def test_of_texts_from_before_the_last_rotation_one_is_accepted():
    keys = folded(CREATED, rotated(SECOND, until_ms=20), rotated(THIRD, until_ms=30))
    assert [is_accepted(keys, text) for text in (FIRST, SECOND, THIRD)] == [False, True, True]


def test_a_rotation_may_change_the_expiry():
    keys = folded(CREATED, rotated(SECOND, until_ms=100, expires_at_ms=15))
    assert is_accepted(keys, SECOND, now_ms=14)
    assert not any(is_accepted(keys, text, now_ms=15) for text in (FIRST, SECOND))


@given(st.permutations([rotated(SECOND, 20), rotated(THIRD, 30), REVOKED, REVOKED, CREATED]))
def test_a_key_that_was_revoked_is_never_accepted_again(records: list[ApiKeyRecord]):
    keys = folded(CREATED, *records)
    assert not any(is_accepted(keys, text) for text in (FIRST, SECOND, THIRD))
    assert keys.by_id[ID].revoked_at_ms == 3


def test_records_without_an_effect_say_so():
    keys = ApiKeys()
    assert keys.apply(REVOKED) is None
    assert keys.apply(ApiKeyUsed(id=ID, at_ms=1)) is None
    assert keys.apply(CREATED) is not None
    assert keys.apply(CREATED) is None
    assert keys.apply(REVOKED) is not None
    assert keys.apply(rotated(SECOND, 20)) is None


def test_the_last_use_is_the_latest():
    used = [ApiKeyUsed(id=ID, at_ms=at_ms) for at_ms in (7200, 3600)]
    assert folded(CREATED, *used).by_id[ID].last_used_at_ms == 7200


def test_roles_are_sets_of_scopes():
    viewer, operator, admin = (scopes_of(role, ()) for role in Role)
    assert viewer < operator < admin == set(Scope)
    assert not any(scope.endswith((":write", ":activate", ":delete")) for scope in viewer)
    assert "personal_data:read" not in viewer
    assert "keys:write" not in operator
    assert scopes_of("viewer", ["jobs:work"]) == viewer | {"jobs:work"}
    assert scopes_of("of a later release", ["jobs:work"]) == {"jobs:work"}


CHILD = msgspec.structs.replace(CREATED, id="key_of_the_first", by=ID, digest="of the child")


def test_a_revocation_ends_the_keys_that_the_key_created():
    grandchild = msgspec.structs.replace(CHILD, id="key_of_the_second", by=CHILD.id)
    keys = folded(CREATED, CHILD, grandchild)
    assert [key.created.id for key in keys.created_by(ID)] == [CHILD.id, grandchild.id]
    keys.apply(REVOKED)
    assert {key.revoked_at_ms for key in keys.by_id.values()} == {REVOKED.at_ms}


def test_a_key_that_a_revoked_key_created_was_never_accepted():
    keys = folded(CREATED, REVOKED, CHILD)
    assert keys.by_id[CHILD.id].ended(0)
    assert keys.by_id[CHILD.id].revoked_by == REVOKED.by


def test_a_rotation_by_a_key_that_was_revoked_has_no_effect():
    other = msgspec.structs.replace(CREATED, id="key_of_another", by="admin:00000000")
    late = msgspec.structs.replace(rotated(SECOND, 20), id=other.id, by=ID)
    keys = folded(CREATED, other, REVOKED)
    assert keys.apply(late) is None
    assert keys.by_id[other.id].rotated_by == ""
    assert keys.apply(msgspec.structs.replace(late, by="admin:00000000")) is not None

"""Whose delivery it is."""

import pytest

from headwater.processors.providers.terra.identity import (
    AUTH_TYPES,
    CONNECTION_TYPES,
    STORED_TYPES,
    previous_subject,
    user_of,
)
from headwater.processors.providers.terra.normalize import SKIPPED_TYPES
from headwater.schemas.providers.terra import Envelope, User


@pytest.mark.parametrize(
    ("reference", "prefix", "user"),
    [
        ("user_1", "user_", "user_1"),
        ("upl_1", "user_", None),
        ("xuser_1", "user_", None),
        ("USER_1", "user_", None),
        ("", "user_", None),
        (None, "user_", None),
        ("anyone", "", "anyone"),
        ("", "", None),
    ],
)
def test_a_reference_is_a_user_if_it_starts_like_one(
    reference: str | None, prefix: str, user: str | None
):
    assert user_of(reference, prefix) == user


@pytest.mark.parametrize(
    ("type_", "old", "new", "previous"),
    [
        ("user_reauth", User(user_id="s-1"), User(user_id="s-2"), "s-1"),
        ("user_reauth", User(user_id="s-1"), None, "s-1"),
        ("user_reauth", User(user_id="s-1"), User(user_id="s-1"), None),
        ("user_reauth", User(user_id=""), User(user_id="s-2"), None),
        ("user_reauth", User(), User(user_id="s-2"), None),
        ("user_reauth", None, User(user_id="s-2"), None),
        ("user_reauth", User(user_id="s\x00"), User(user_id="s-2"), None),
        ("auth", User(user_id="s-1"), User(user_id="s-2"), None),
    ],
)
def test_only_a_reauthentication_replaces_a_subject(
    type_: str, old: User | None, new: User | None, previous: str | None
):
    assert previous_subject(type_, Envelope(old_user=old, new_user=new)) == previous


def test_types_that_write_connections_are_stored_and_those_that_authenticate_write_connections():
    assert {"auth", "auth_success", "user_reauth"} == AUTH_TYPES
    assert AUTH_TYPES < CONNECTION_TYPES < STORED_TYPES
    assert not STORED_TYPES & SKIPPED_TYPES

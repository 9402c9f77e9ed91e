"""Whose delivery it is."""

import pytest

from headwater.processors.providers.envelope import user_of
from headwater.processors.providers.terra.auth import previous_subject
from headwater.processors.providers.terra.provider import TERRA
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
    ("old", "new", "previous"),
    [
        (User(user_id="s-1"), User(user_id="s-2"), "s-1"),
        (User(user_id="s-1"), None, "s-1"),
        (User(user_id="s-1"), User(user_id="s-1"), None),
        (User(user_id=""), User(user_id="s-2"), None),
        (User(), User(user_id="s-2"), None),
        (None, User(user_id="s-2"), None),
        (User(user_id="s\x00"), User(user_id="s-2"), None),
    ],
)
def test_a_reauthentication_names_the_subject_that_it_replaces(
    old: User | None, new: User | None, previous: str | None
):
    assert previous_subject(Envelope(old_user=old, new_user=new)) == previous


def test_only_deliveries_about_connections_say_which_user_a_subject_belongs_to():
    about = {type_ for type_, kind in TERRA.types.items() if kind.fills_lookup}
    assert about == {"auth", "auth_success", "user_reauth", "deauth", "access_revoked"}
    two = {type_ for type_, kind in TERRA.types.items() if kind.other_subject is not None}
    assert two == {"user_reauth"}

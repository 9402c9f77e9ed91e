"""Addresses of servers are shown without the passwords in them, in every form that they take."""

import pytest

from headwater.gateway.settings.exposure import redacted

#: Each has `hidden`, in some form, where its password is.
ADDRESSES = {
    "postgresql://me:hidden@db/rows": "postgresql://me:(secret)@db/rows",
    "postgresql://:hidden@db/rows": "postgresql://:(secret)@db/rows",
    "postgresql://me:a:hidden@db/rows": "postgresql://me:(secret)@db/rows",
    "postgresql://me:a@hidden@db/rows": "postgresql://me:(secret)@db/rows",
    "postgresql://me:a/hidden@db/rows": "postgresql://me:(secret)@db/rows",
    "postgresql://db/rows?user=me&password=hidden&application_name=x": (
        "postgresql://db/rows?user=me&password=(secret)&application_name=x"
    ),
    "postgresql://db/rows?p%61ssword=hidden": "postgresql://db/rows?p%61ssword=(secret)",
    "postgresql://me:hidden@db/rows?sslpassword=hidden": (
        "postgresql://me:(secret)@db/rows?sslpassword=(secret)"
    ),
    "host=db password=hidden dbname=rows": "host=db password=(secret) dbname=rows",
    "host=db password = 'a hidden' dbname=rows": "host=db password=(secret) dbname=rows",
    r"password='it\'s hidden' host=db": "password=(secret) host=db",
    r"password=a\ hidden host=db": "password=(secret) host=db",
    "host=db password='hidden": "host=db password=(secret)",
    "me:hidden@kafka:9092": "me:(secret)@kafka:9092",
    "http://me:hidden@127.0.0.1:8090/tick": "http://me:(secret)@127.0.0.1:8090/tick",
}
#: In these is nothing to hide.
OPEN = (
    "",
    "kafka-1:9092,kafka-2:9092",
    "[::1]:9092",
    "postgresql://me@db:5432/rows?application_name=x",
    "host=db port=5432 dbname=rows",
    "package.module:name",
    "/run/secrets/ca.pem",
)


@pytest.mark.parametrize(("address", "shown"), ADDRESSES.items())
def test_a_password_is_hidden(address: str, shown: str):
    assert redacted(address) == shown
    assert "hidden" not in shown


@pytest.mark.parametrize("address", OPEN)
def test_what_has_no_password_is_shown_as_it_is(address: str):
    assert redacted(address) == address

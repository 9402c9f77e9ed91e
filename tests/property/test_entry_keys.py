"""Keys of entries: any names, in any depth, give keys that say where the entry is."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.processors.code.state import (
    entry_key,
    escaped,
    iteration_of,
    iteration_scope,
    keys_at_or_under,
    keys_of_iterations,
    keys_under,
    scopes_above,
)

#: Names that meet the grammar's own characters more often than chance would.
NAMES = st.text(
    st.sampled_from("/%~25F0123ab") | st.characters(exclude_categories=["Cs"]), min_size=1
)
NUMBERS = st.integers(0, 10**18 - 1)
#: Names, and numbers of iterations, from the outermost.
PATHS = st.lists(NAMES | NUMBERS, min_size=1, max_size=5)


def key_of(path: list[str | int]) -> str:
    """The key of a path. An iteration is always of something."""
    key = ""
    for item in path:
        if isinstance(item, str):
            key = entry_key(key, item)
        else:
            key = iteration_scope(key or "loop", item)
    return key


@given(NAMES, NAMES)
def test_two_names_never_share_a_spelling(one: str, other: str):
    assert (escaped(one) == escaped(other)) == (one == other)


@given(NAMES | st.text("%25F/", min_size=1))
def test_a_name_is_one_part_and_can_be_read_back(name: str):
    part = escaped(name)
    assert "/" not in part
    result, at = "", 0
    while at < len(part):
        meant = {"%2F": "/", "%25": "%"}.get(part[at : at + 3])
        result += meant or part[at]
        at += 3 if meant else 1
    assert result == name


@given(PATHS, NAMES)
def test_a_key_lies_beneath_its_scope_and_beneath_all_above_it(path: list[str | int], name: str):
    scope = key_of(path)
    key = entry_key(scope, name)
    above = [item for item, _ in scopes_above(key)]
    assert above[-1] == scope
    assert all(list(keys_under([key], item)) == [key] for item in ("", *above))
    assert all(item == f"{key[: len(item)]}" for item in above)
    assert list(keys_under([scope], scope)) == []


@given(PATHS)
def test_the_parts_of_a_key_are_read_as_they_were_written(path: list[str | int]):
    key = key_of(path)
    parts = [part for _, part in scopes_above(key)]
    assert "/".join((key.split("/")[0], *parts)) == key
    inner = path[1:]
    for part, written in zip(parts[len(parts) - len(inner) :], inner, strict=True):
        assert part == (escaped(written) if isinstance(written, str) else f"~{written}")


@given(NAMES, NUMBERS, NAMES)
def test_the_number_of_an_iteration_is_found_in_the_keys_beneath_it(
    loop: str, number: int, name: str
):
    scope = iteration_scope(escaped(loop), number)
    key = entry_key(scope, name)
    assert list(keys_of_iterations([key, scope, escaped(loop)], escaped(loop))) == [(key, number)]
    ((_, part), *_) = scopes_above(key)
    assert iteration_of(part) == number


@given(st.text())
def test_only_digits_are_the_number_of_an_iteration(text: str):
    number = iteration_of(text)
    if number is None:
        assert not (text[:1] == "~" and text[1:].isascii() and text[1:].isdecimal())
    else:
        assert text[0] == "~"
        assert int(text[1:]) == number


@given(st.lists(PATHS), st.lists(PATHS, max_size=3))
def test_what_is_at_or_beneath_scopes_is_each_of_them_and_all_beneath(
    paths: list[list[str | int]], scopes: list[list[str | int]]
):
    keys = [key_of(path) for path in (*paths, *scopes)]
    chosen = [key_of(path) for path in scopes]
    expected = [
        key
        for key in keys
        if key in chosen or any(scope in chosen for scope, _ in scopes_above(key))
    ]
    assert keys_at_or_under(keys, chosen) == expected

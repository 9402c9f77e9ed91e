"""Request ids are ULIDs, or the caller's own."""

from itertools import count

import pytest

from headwater.gateway.client.requests import buffered_random, ulid_source, usable


def ulid(at_ms: int, random: bytes) -> str:
    return ulid_source(lambda: at_ms, lambda count: random[:count])()


def test_a_ulid_is_that_of_its_specification() -> None:
    # The time part of the specification's own example, 01ARZ3NDEKTSV4RRFFQ69G5FAV.
    assert ulid(1_469_922_850_259, bytes(16)) == "01ARZ3NDEK" + "0" * 16
    assert ulid(2**48 - 1, b"\xff" * 16) == "7ZZZZZZZZZ" + "Z" * 16


def test_ulids_sort_by_time() -> None:
    made = [ulid(at_ms, b"\xff" * 16) for at_ms in (0, 1, 31, 32, 1024, 1_782_900_000_000)]
    assert made == sorted(made)
    assert {len(one) for one in made} == {26}


def test_a_source_reads_its_clock_and_its_randomness() -> None:
    times = iter([5, 5, 6])
    source = ulid_source(lambda: next(times), lambda count: bytes(range(count)))
    first, second, third = source(), source(), source()
    assert first == second == ulid(5, bytes(range(16)))
    assert third == ulid(6, bytes(range(16)))


@pytest.mark.parametrize("offered", [b"01JZ2Y0W8M3V9Q6T5R4E3W2Q1A", b"a.b_c:d-e", b"x" * 64])
def test_a_usable_id_is_kept_as_it_is(offered: bytes) -> None:
    assert usable(offered) == offered.decode()


@pytest.mark.parametrize(
    "offered", [None, b"", b"short", b"x" * 65, b"-starts-badly", b"new\nline12", b"\xff" * 9]
)
def test_an_id_that_could_break_something_is_not(offered: bytes | None) -> None:
    assert usable(offered) is None


def test_randomness_drawn_ahead_is_given_once() -> None:
    numbers = count()
    draws: list[int] = []

    def random(size: int) -> bytes:
        draws.append(size)
        return b"".join(next(numbers).to_bytes(4, "big") for _ in range(size // 4))

    draw = buffered_random(random)
    provided = [draw(4) for _ in range(1_000)]
    assert len(set(provided)) == 1_000
    assert {len(one) for one in provided} == {4}
    assert len(draws) < 10

"""How much a user may upload in an hour."""

import pytest

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.users.lab_reports import UploadLimits


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> UploadLimits:
    return UploadLimits(4, 1_000, clock)


def upload(limits: UploadLimits, user_id: str, size: int = 0) -> int:
    """Uploads a file; returns the seconds until one is taken again."""
    try:
        limits.begin(user_id)
    except Problem as problem:
        return int(problem.headers["retry-after"])
    limits.add_bytes(user_id, size)
    return 0


def test_so_many_files_are_taken_in_an_hour(limits: UploadLimits, clock: Clock):
    assert [upload(limits, "amara") for _ in range(5)] == [0, 0, 0, 0, 900]
    assert upload(limits, "bo") == 0
    clock.now_s += 900
    assert [upload(limits, "amara") for _ in range(2)] == [0, 900]


def test_so_many_bytes_are_taken_in_an_hour(limits: UploadLimits, clock: Clock):
    assert upload(limits, "amara", 1_500) == 0
    assert upload(limits, "amara") == pytest.approx(1_804, abs=1)
    assert upload(limits, "bo", 1) == 0
    clock.now_s += 1_810
    assert upload(limits, "amara") == 0


def test_files_that_do_not_arrive_count(limits: UploadLimits):
    for _ in range(4):
        limits.begin("amara")
    assert upload(limits, "amara") > 0


def test_a_clock_that_is_set_back_gives_and_takes_nothing(limits: UploadLimits, clock: Clock):
    assert [upload(limits, "amara") for _ in range(4)] == [0] * 4
    clock.now_s -= 10_000
    assert upload(limits, "amara") == 900


def test_so_many_users_are_remembered(limits: UploadLimits):
    for number in range(100_100):
        limits.add_bytes(f"user-{number}", 1)
    assert limits.remembered == 100_000

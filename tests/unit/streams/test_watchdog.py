"""The watchdog: who gets on is let be, and whoever does not is named with the last that he did."""

import pytest

from headwater.streams.pipeline.watchdog import Stalled, Watchdog


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_whoever_gets_on_in_time_is_let_be_and_one_that_does_not_is_named():
    clock = Clock()
    watchdog = Watchdog(patience_s=60, monotonic=clock)
    watchdog.gets_on("partition 1", "it was assigned")
    watchdog.gets_on("partition 2", "it was assigned")
    for _ in range(3):
        clock.now += 30
        watchdog.gets_on("partition 2", "webhooks up to 7")
        if clock.now <= 160:
            watchdog.check()
    with pytest.raises(Stalled, match=r"partition 1 .* nothing done for 90 s; .*: it was assigned"):
        watchdog.check()


def test_who_has_left_is_not_watched():
    clock = Clock()
    watchdog = Watchdog(patience_s=60, monotonic=clock)
    watchdog.gets_on("partition 1", "it was assigned")
    watchdog.leave("partition 1")
    clock.now += 90
    watchdog.check()

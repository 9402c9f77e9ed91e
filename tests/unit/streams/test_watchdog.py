"""The watchdog: who gets on is let be, and whoever does not is named with the last that he did."""

import signal
import subprocess
import sys

import pytest

from headwater.streams.ownership.watchdog import Stalled, Watchdog

PATIENCE_S = 30


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_whoever_gets_on_in_time_is_let_be_and_one_that_does_not_is_named():
    clock = Clock()
    watchdog = Watchdog(patience_s=60, monotonic=clock)
    watchdog.record_progress("partition 1", "it was assigned")
    watchdog.record_progress("partition 2", "it was assigned")
    for _ in range(3):
        clock.now += 30
        watchdog.record_progress("partition 2", "webhooks up to 7")
        if clock.now <= 160:
            watchdog.check()
    with pytest.raises(Stalled, match=r"partition 1 .* found none for 90 s; .*: it was assigned"):
        watchdog.check()


def test_who_has_left_is_not_watched():
    clock = Clock()
    watchdog = Watchdog(patience_s=60, monotonic=clock)
    watchdog.record_progress("partition 1", "it was assigned")
    watchdog.leave("partition 1")
    clock.now += 90
    watchdog.check()


#: Nobody reads its standard error, which is full, so whoever writes there waits.
UNREAD = """
import fcntl, os, time
from headwater.streams.ownership import watchdog

flags = fcntl.fcntl(2, fcntl.F_GETFL)
fcntl.fcntl(2, fcntl.F_SETFL, flags | os.O_NONBLOCK)
for size in (4_096, 1):
    try:
        while True:
            os.write(2, b"." * size)
    except BlockingIOError:
        pass
fcntl.fcntl(2, fcntl.F_SETFL, flags)
watchdog._STACKS_S = 0.2
watchdog.arm(0.2)
os.write(2, b"a line of a log")
"""


def test_a_process_whose_log_nobody_reads_is_ended_all_the_same():
    stuck = subprocess.Popen([sys.executable, "-c", UNREAD], stderr=subprocess.PIPE)
    try:
        assert stuck.wait(PATIENCE_S) == -signal.SIGALRM
    finally:
        stuck.kill()
        stuck.communicate()

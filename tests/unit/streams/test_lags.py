"""How long records have waited, as the ends of partitions show."""

from headwater.streams.kafka import lags
from headwater.streams.kafka.lags import EndHistory, PartitionLag


def lag(position: int, end: int) -> PartitionLag:
    return PartitionLag("headwater", "webhooks", 0, position, end)


def test_a_record_waits_since_the_last_time_when_it_was_not_there():
    history = EndHistory()
    for at_s, end in [(0, 5), (10, 5), (20, 9), (30, 9), (40, 12)]:
        history.observe([lag(5, end)], at_s)
    assert history.age_s(lag(12, 12), 50) == 0
    assert history.age_s(lag(5, 12), 50) == 40  # Appended after 10.
    assert history.age_s(lag(8, 12), 50) == 40
    assert history.age_s(lag(9, 12), 50) == 20  # Appended after 30.


def test_a_record_from_before_the_first_observation_counts_from_there():
    history = EndHistory()
    history.observe([lag(2, 5)], 100)
    assert history.age_s(lag(2, 5), 130) == 30


def test_a_topic_that_was_created_again_begins_again():
    history = EndHistory()
    history.observe([lag(0, 50)], 0)
    history.observe([lag(0, 3)], 10)
    history.observe([lag(0, 4)], 20)
    assert history.age_s(lag(3, 4), 30) == 20


def test_a_long_history_is_thinned_and_stays_an_upper_bound():
    history, points = EndHistory(), 4 * lags._POINTS_MAX
    for at_s in range(points):
        history.observe([lag(0, at_s + 1)], at_s)
    assert len(history._ends["webhooks", 0]) <= lags._POINTS_MAX
    for position in (0, 1, points // 2, points - 2):
        true_age = points - 1 - position
        assert history.age_s(lag(position, points), points - 1) >= true_age

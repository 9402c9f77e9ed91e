"""Growths of the topics are in the log, beside the marks of skipped records."""

import dataclasses

from headwater.schemas.topics import SKIPPED
from headwater.streams.kafka.growth_marks import GrowthMark, growth_record, growths_in, is_growth
from headwater.streams.kafka.records import Incoming, Outgoing
from tests.unit.streams.test_intake import read_back


def mark(prefix: str, before: int, *ends: int) -> Incoming:
    return read_back(growth_record(SKIPPED, prefix, GrowthMark(before, ends)))


def test_growths_are_read_in_order_however_often_they_were_written():
    skip = read_back(Outgoing(SKIPPED, 0, b"webhooks/1@17", b'{"topic":"webhooks"}'))
    first, second = mark("v2.", 2, 10, 20), mark("v3.", 4, 15, 25, 5, 6)
    log = [skip, first, first, second, dataclasses.replace(second, offset=9)]
    assert growths_in(log) == [(2, [10, 20]), (4, [15, 25, 5, 6])]
    assert [is_growth(record) for record in log] == [False, True, True, True, True]
    assert growths_in([skip]) == []

"""Where records go when topics get more partitions: by the same owners as when they are written."""

import msgspec
import pytest

from headwater.gateway.settings.providers import installed_providers
from headwater.processors.providers.provider import Placement
from headwater.processors.runs.claims import claim_of
from headwater.schemas.codec import decode, encode, encode_row
from headwater.schemas.epochs import CLAIM, CLAIM_KEY
from headwater.schemas.history import (
    NO_LEADER_EPOCH,
    HistoryAppended,
    InstanceDeleted,
    LeaderEpochNoted,
    LogEvent,
    record_key,
)
from headwater.schemas.records import Stamp, UserForgotten, WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import TABLES, Row, Table
from headwater.schemas.topics import (
    ADMISSIONS,
    AUDIT,
    DEAD_LETTERS,
    EVENTS,
    OUTCOMES,
    TOPICS,
    UNRESOLVED,
    WAITING,
    WEBHOOKS,
    WIPES,
    WORKFLOW_COMMANDS,
    WORKFLOW_HISTORY,
    WORKFLOW_SNAPSHOTS,
    Topic,
)
from headwater.streams.kafka.records import Headers, Incoming, Outgoing, moved_to, partition_of
from headwater.streams.pipeline.delivery_lookup import targets_of
from headwater.streams.pipeline.growth_routes import (
    Layout,
    Router,
    Treatment,
    note_removals,
    treatment_of,
)
from headwater.streams.pipeline.reprocessing import partition_now

BY_NAME = {topic.name: topic for topic in TOPICS}
PLACEMENT = Placement(installed_providers(), "user_")
LAYOUT = Layout(4, 12)
USERS = [f"user_{number}" for number in range(200)]


def record(
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None = None,
    offset: int = 7,
) -> Incoming:
    read = Outgoing(topic, partition, key, value, headers).as_read()
    read.offset = offset
    return read


def router(topic: str, partition: int, *removed: bytes, layout: Layout = LAYOUT) -> Router:
    later = {key: set[int]() for key in removed}
    return Router(BY_NAME[topic], partition, layout, PLACEMENT, later)


def delivery(user: str, event_id: str = "0" * 32) -> WebhookReceived:
    return WebhookReceived(
        event_id=event_id,
        request_id="r",
        source="terra",
        type="daily",
        subject="terra-1",
        reference=user,
        sent_at_ms=0,
        updated_at_ms=0,
        received_at_ms=0,
        body=b"{}",
    )


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_every_topic_has_a_treatment(topic: Topic):
    assert treatment_of(topic) in Treatment


@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 8), (4, 12), (3, 3), (12, 24)])
def test_an_owner_goes_where_it_is_written_afterwards(before: int, after: int):
    layout = Layout(before, after)
    for user in USERS:
        old, new = partition_of(user.encode(), before), partition_of(user.encode(), after)
        assert new in layout.targets(old)
        assert layout.place(user, old) == new
        value = encode(delivery(user))
        read = record(WEBHOOKS, old, b"0" * 32, value)
        assert router(WEBHOOKS, old, layout=layout).route(read) == (new,)


def test_targets_share_all_partitions():
    targets = [target for number in range(4) for target in LAYOUT.targets(number)]
    assert sorted(targets) == list(range(12))


def test_a_record_in_another_partition_than_its_owners_stays_there():
    partition = (partition_of(b"user_1", 4) + 1) % 4
    read = record(WEBHOOKS, partition, b"0" * 32, encode(delivery("user_1")))
    assert router(WEBHOOKS, partition).route(read) == (partition,)
    unreadable = record(WEBHOOKS, 2, b"0" * 32, b"not Avro")
    assert router(WEBHOOKS, 2).route(unreadable) == (2,)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_rows_go_to_their_owner_and_so_do_their_tombstones(table: Table):
    for user in USERS[:40]:
        key = (user, *("2026-01-01T00:00:00Z" for _ in table.key[1:]))
        values = [None] * len(table.columns)
        owner = user
        if "user_id" in table.column_names and table.owner.value == "user":
            key, owner = ("upload-1",), user
            values[table.column_names.index("user_id")] = user
        stamp = Stamp(0, 1, 0, "0" * 32, 0, 0)
        stamps = [None if value is None else stamp for value in values]
        row = Row(key, tuple(values), tuple(stamps))
        partition, name = partition_of(owner.encode(), 4), table.row_key(key)
        routes = router(table.topic, partition, name)
        written = record(table.topic, partition, name, encode_row(table, row))
        deleted = record(table.topic, partition, name, None)
        expected = (partition_of(owner.encode(), 12),)
        assert (routes.route(written), routes.route(deleted)) == (expected, expected)


def test_a_tombstone_goes_wherever_earlier_records_of_its_key_went():
    partition = partition_of(b"user_1", 4)
    others = [user for user in USERS if partition_of(user.encode(), 4) == partition]
    routes = router(WEBHOOKS, partition, b"k")
    places = {
        routes.route(record(WEBHOOKS, partition, b"k", encode(delivery(user))))[0]
        for user in others
    }
    assert len(places) == 3
    assert set(routes.route(record(WEBHOOKS, partition, b"k", None))) == places
    # Its records were removed by compaction.
    assert routes.route(record(WEBHOOKS, partition, b"unknown", None)) == (partition,)


def test_a_tombstone_without_earlier_records_goes_where_the_next_one_of_its_key_goes():
    moved = next(user for user in USERS if partition_of(user.encode(), 12) == 5)
    log = [
        record(WEBHOOKS, 1, b"k", None, offset=10),
        record(WEBHOOKS, 1, b"other", encode(delivery(moved)), offset=15),
        record(WEBHOOKS, 1, b"k", encode(delivery(moved)), offset=20),
    ]
    removed: dict[bytes, set[int]] = {}
    note_removals(removed, log, router(WEBHOOKS, 1))
    assert removed == {b"k": {5}}
    routes = Router(BY_NAME[WEBHOOKS], 1, LAYOUT, PLACEMENT, removed)
    assert [routes.route(read) for read in log] == [(5,), (5,), (5,)]


def test_a_tombstone_goes_where_its_key_is_written_afterwards_if_the_key_names_the_owner():
    for user in USERS[:40]:
        waiting = msgspec.json.encode(("terra", user, "0" * 32))
        event = record_key(f"order/{user}".encode(), 3, 1)
        for topic, key, owner in (
            (WAITING, waiting, user),
            (WORKFLOW_HISTORY, event, f"order/{user}"),
        ):
            partition = partition_of(owner.encode(), 4)
            deleted = record(topic, partition, key, None)
            expected = (partition_of(owner.encode(), 12),)
            assert router(topic, partition).route(deleted) == expected


def test_claims_of_a_partition_are_in_all_of_its_targets():
    for topic in (TABLES[0].topic, WAITING, WIPES, OUTCOMES):
        claim = record(topic, 1, CLAIM_KEY, b"", [(CLAIM, b"worker")])
        assert router(topic, 1).route(claim) == (1, 5, 9)
    claimed = encode(claim_of("worker", {}, 0))
    read = record(WORKFLOW_HISTORY, 1, record_key(b"worker", 0, 1), claimed)
    assert router(WORKFLOW_HISTORY, 1).route(read) == (1, 5, 9)
    assert router(ADMISSIONS, 1).route(record(ADMISSIONS, 1, None, b"any")) == (1, 5, 9)


def test_events_of_an_instance_stay_together_in_the_partition_of_its_commands():
    for number in range(100):
        key = f"order/o-{number}"
        partition = partition_of(key.encode(), 4)
        event = HistoryAppended(
            workflow="order",
            instance_id=f"o-{number}",
            run_number=0,
            sequence=0,
            epoch=0,
            cause=-1,
            at_ms=0,
            events=(InstanceDeleted(),),
        )
        name = record_key(key.encode(), 3, 1)
        routes = router(WORKFLOW_HISTORY, partition)
        expected = (partition_of(key.encode(), 12),)
        assert routes.route(record(WORKFLOW_HISTORY, partition, name, encode(event))) == expected


def test_what_is_read_or_computed_again_is_not_copied():
    for topic in (WORKFLOW_COMMANDS, WORKFLOW_SNAPSHOTS):
        assert router(topic, 1).route(record(topic, 1, b"order/o-1", b"any")) == ()
    assert router(WORKFLOW_COMMANDS, 1).targets == (1, 5, 9)
    assert router(WORKFLOW_SNAPSHOTS, 1).targets == ()


def test_topics_of_one_partition_and_dead_letters_stay_where_they_are():
    for topic in (AUDIT, DEAD_LETTERS):
        assert router(topic, 0).targets == (0,)
        assert router(topic, 0).route(record(topic, 0, b"key", b"any")) == (0,)


def test_a_wipe_covers_the_new_partitions_up_to_the_same_offsets():
    wipe = UserForgotten(
        wipe_id="w",
        digests=["d"],
        names=[],
        fence=[10, 20, 30, 40],
        found=[],
        counts=[],
        ordered_at_ms=0,
    )
    read = record(WIPES, 1, b"d", encode(wipe))
    routes = router(WIPES, 1)
    assert routes.route(read) == (1, 5, 9)
    copied = decode(routes.value(read), UserForgotten)
    assert copied == msgspec.structs.replace(wipe, fence=[10, 20, 30, 40] * 3)
    claim = record(WIPES, 1, CLAIM_KEY, b"", [(CLAIM, b"worker")])
    assert routes.value(claim) == b""


def history(event: LogEvent) -> bytes:
    return encode(
        HistoryAppended(
            workflow="",
            instance_id="",
            run_number=0,
            sequence=0,
            epoch=3,
            cause=-1,
            at_ms=0,
            events=(event,),
        )
    )


def test_leader_epochs_of_the_old_commands_are_forgotten_and_lost_commands_are_not():
    noted = history(LeaderEpochNoted(4))
    others = [history(LeaderEpochNoted(4, 17)), history(claim_of("w", {}, 0).events[0]), b"other"]
    for layout in (LAYOUT, Layout(4, 4)):
        routes = router(WORKFLOW_HISTORY, 1, layout=layout)
        read = record(WORKFLOW_HISTORY, 1, record_key(b"/", 3, 7), noted)
        assert routes.route(read) == tuple(layout.targets(1))
        assert routes.value(read) == history(LeaderEpochNoted(NO_LEADER_EPOCH))
        for value in others:
            read = record(WORKFLOW_HISTORY, 1, record_key(b"/", 3, 8), value)
            assert routes.value(read) == value
        of_instance = record(WORKFLOW_HISTORY, 1, record_key(b"order/1", 3, 9), noted)
        assert routes.value(of_instance) == noted


# -- what is put back, or read by its former position


def test_a_position_leads_to_all_partitions_that_may_have_the_record():
    assert moved_to(1, 4) == [3]
    for before, after in ((2, 6), (4, 12), (3, 12)):
        for number in range(before):
            others = set(Layout(before, after).targets(number)) - {number}
            assert others <= set(moved_to(number, after))
    assert moved_to(1, 5) == []
    assert moved_to(7, 12) == []
    # What was appended since is where it was.
    growths = [(2, [10, 20]), (4, [15, 25, 5, 6])]
    assert list(targets_of((1, 19), growths, 12)) == [3, 5, 7, 9, 11]
    assert list(targets_of((1, 22), growths, 12)) == [5, 9]
    assert list(targets_of((1, 25), growths, 12)) == list(targets_of((5, 1), growths, 12)) == []


def test_a_command_that_is_put_back_goes_to_the_partition_of_its_instance():
    for number in range(100):
        key = f"order/o-{number}".encode()
        put_back = Outgoing(WORKFLOW_COMMANDS, partition_of(key, 4), key, b"any")
        assert partition_now(put_back, 12) == partition_of(key, 12)
        at_home = put_back._replace(partition=partition_of(key, 12))
        assert partition_now(at_home, 12) == at_home.partition
    # Written by another program, with a partition of its own.
    assert partition_now(Outgoing(WORKFLOW_COMMANDS, 2, None, b"any"), 12) == 2


def test_a_hop_that_is_put_back_goes_to_its_owner_and_a_delivery_stays():
    received = delivery("user_7")
    for user in USERS[:50]:
        fields = {name: getattr(received, name) for name in received.__struct_fields__}
        event = WebhookAdmitted(
            **fields | {"reference": user},
            user_id=user,
            partition=0,
            offset=1,
            admitted_at_ms=0,
        )
        old = partition_of(user.encode(), 4)
        hop = Outgoing(EVENTS, old, b"0" * 32, encode(event))
        assert partition_now(hop, 12) in (partition_of(user.encode(), 12), old)
        key = msgspec.json.encode((user, "0" * 32))
        unresolved = Outgoing(UNRESOLVED, old, key, encode(event))
        assert partition_now(unresolved, 12) == partition_of(user.encode(), 12)
        raw = Outgoing(WEBHOOKS, old, b"0" * 32, encode(received))
        assert partition_now(raw, 12) == old

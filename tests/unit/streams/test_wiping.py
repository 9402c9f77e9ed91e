"""A partition forgets a user: what its owner does with the order, and what it looks for."""

import dataclasses
from collections.abc import Sequence

import msgspec
import pytest

from headwater.processors.providers.envelope import UNREADABLE, Malformed
from headwater.processors.providers.headwater import delivery_of as fact_of
from headwater.processors.providers.provider import Placement, Providers
from headwater.processors.wipes import FORGET, SOURCE, TYPE, ForgetParams, WipeOrder, digest
from headwater.schemas import tables
from headwater.schemas.codec import decode, decode_row, encode
from headwater.schemas.history import StartRun
from headwater.schemas.providers.headwater import LabUploaded
from headwater.schemas.records import EffectDecided, UserForgotten, WebhookReceived
from headwater.schemas.topics import (
    ADMISSIONS,
    DEAD_LETTERS,
    EFFECTS,
    EVENTS,
    OUTCOMES,
    UNRESOLVED,
    WAITING,
    WEBHOOKS,
    WIPES,
)
from headwater.streams.kafka.dead_letters import REPLAY_OF, ProcessingFailure, dead_letter
from headwater.streams.kafka.records import Outgoing, partition_of
from headwater.streams.pipeline.processing import admitted
from headwater.streams.pipeline.rebuilding import Rebuild
from headwater.streams.pipeline.wiping import WipeSearch, order_records
from tests.fakes.memory_store import MemoryStore
from tests.unit.streams.test_intake import (
    AUTH,
    AUTH_OF_1,
    DAILY,
    NOW,
    PROVIDERS,
    RULE_FOR_ALL,
    Owner,
    intake_of,
    on,
    outcomes,
    raw,
    read_back,
    received,
    restored,
    step,
    switched,
    tick,
)

DAILY_SUMMARY = "daily-summary"
DAY_MS = 86_400_000
CONNECTIONS = "connections"


def ordered(
    offset: int,
    user: str = "user_1",
    wipe_id: str = "w1",
    fence: int | None = None,
    at_ms: int = NOW,
):
    """The order to wipe, at an offset; it covers what lies before it."""
    body = msgspec.json.encode(WipeOrder(wipe_id, user, (offset if fence is None else fence,)))
    wipe = received(
        event_id=f"wipe-{wipe_id}", source=SOURCE, type=TYPE, subject=user, body=body,
        received_at_ms=at_ms,
    )  # fmt: skip
    return raw(wipe, offset)


def at_work(*more: object) -> Owner:
    """An intake that knows user_1 by t1, has a day of theirs, and one of another user."""
    intake = intake_of()
    step(intake, raw(received(**AUTH_OF_1)))
    step(intake, raw(received(event_id="day"), 1))
    step(intake, raw(received(event_id="other", reference="user_2", subject="t2"), 2))
    return intake


def forgotten(emitted: Sequence[Outgoing]) -> UserForgotten:
    (record,) = on(list(emitted), WIPES)
    return decode(record.value, UserForgotten)


def test_rows_of_the_user_are_removed_and_those_of_others_stay():
    intake = at_work()
    emitted = step(intake, ordered(3))
    assert [(r.key, r.value) for r in on(emitted, DAILY_SUMMARY)] == [
        (b'["user_1","garmin","2026-07-01"]', None)
    ]
    assert [(r.key, r.value) for r in on(emitted, CONNECTIONS)] == [(b'["t1"]', None)]
    wipe = forgotten(emitted)
    assert wipe.names == ["user_1", "t1"]
    assert wipe.digests == [digest("user_1"), digest("t1")]
    counts = dict(zip(wipe.found, wipe.counts, strict=True))
    assert counts == {"terra_connections": 1, "daily_summary": 1, "users": 1, "waiting": 0}
    assert on(emitted, OUTCOMES) == on(emitted, ADMISSIONS) == []


def test_only_rows_that_may_be_the_users_are_decoded(monkeypatch: pytest.MonkeyPatch):
    intake = at_work()
    for number in range(50):
        body = AUTH.replace(b"user_1", b"user_2").replace(b'"t1"', b'"t%d"' % (number + 100))
        more = {"event_id": f"a{number}", "subject": f"t{number + 100}", "reference": "user_2"}
        step(intake, raw(received(type="auth", body=body, **more), 3 + number))
    decoded: list[bytes] = []

    def counted(table: tables.Table, value: bytes) -> tables.Row:
        decoded.append(value)
        return decode_row(table, value)

    monkeypatch.setattr("headwater.streams.pipeline.partition_rows.decode_row", counted)
    wiped = forgotten(step(intake, ordered(60)))
    assert dict(zip(wiped.found, wiped.counts, strict=True))["terra_connections"] == 1
    assert len(decoded) < 20


def test_instances_about_the_user_are_forgotten_by_a_workflow_that_names_nobody():
    (effect,) = on(step(at_work(), ordered(3)), EFFECTS)
    decided = decode(effect.value, EffectDecided)
    assert (decided.workflow, decided.instance_id) == (FORGET, "w1")
    assert isinstance(decided.command, StartRun)
    params = msgspec.json.decode(decided.command.params, type=ForgetParams)
    assert (params.user_sha256, params.partitions) == (digest("user_1"), 1)
    assert b"user_1" not in (effect.value or b"")


def test_who_is_delivered_in_the_batch_of_the_wipe_is_not_mistaken():
    """A row that is removed and there again in one batch is written once, as it is in the end."""
    intake = at_work()
    before = raw(received(event_id="before", reference="user_1"), 3)
    after = raw(received(event_id="after", reference="user_1"), 6)
    emitted = step(intake, before, ordered(4), raw(back(2_000), 5), after)
    (row,) = on(emitted, DAILY_SUMMARY)
    assert row.value is not None
    restart = intake_of()
    restored(restart, read_back(row), read_back(on(emitted, WIPES)[0]))
    again = step(restart, ordered(9, wipe_id="w2", fence=5))
    assert on(again, DAILY_SUMMARY) == [], "what is left was set by the later one alone"


def test_what_waits_of_the_users_subject_waits_no_more():
    intake = intake_of()
    step(intake, raw(received(**AUTH_OF_1)))
    step(intake, raw(received(event_id="early", subject="t9"), 1))
    step(intake, ordered(2))
    assert [r.key for r in on(tick(intake, NOW + 5_000), WAITING)] == [
        b'["terra_connections","t9","early"]'
    ], "whose it is, nobody knows"
    intake = intake_of()
    step(intake, raw(received(event_id="early", reference="somebody")))
    emitted = step(intake, ordered(1, user="somebody"))
    assert [r.value for r in on(emitted, WAITING)] == [None]
    assert tick(intake, NOW + 5_000) == []


@pytest.mark.parametrize("headers", [(), ((REPLAY_OF, b"webhooks/0@1"),)])
def test_a_copy_or_a_replay_of_what_was_wiped_brings_nothing_back_and_is_removed(
    headers: tuple[tuple[str, bytes], ...],
):
    intake = at_work()
    step(intake, ordered(3))
    (removed,) = step(intake, raw(received(event_id="day"), 4, headers=headers))
    assert (removed.topic, removed.key, removed.value) == (WEBHOOKS, b"day", None)


def unreadable(event_id: str, user: bytes = b"user_1") -> WebhookReceived:
    """A delivery about a user that the gateway could not route."""
    body = DAILY.replace(b'"user_id": "t1"', b'"user_id": "t1", "reference_id": "%s"' % user)
    return received(event_id=event_id, type=UNREADABLE, subject="", body=body)


def without_routing() -> Providers:
    """Providers of which Terra's cannot route any delivery."""

    def read(body: bytes, headers: object) -> Malformed:
        return Malformed("malformed_payload", f"expected another body than {body!r}")

    return {**PROVIDERS, "terra": dataclasses.replace(PROVIDERS["terra"], read=read)}


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_replay_of_an_unreadable_delivery_of_a_wiped_user_brings_nothing_back(
    partitions: int, is_known: bool
):
    broken, fixed = intake_of(without_routing(), partitions), intake_of(partitions=partitions)
    fixed.states = broken.states
    fixed.intake = intake_of(partitions=partitions, rules=RULE_FOR_ALL).intake
    if is_known:
        dead = step(broken, raw(unreadable("u")))
        assert outcomes(dead)["u"].status == "dead"
    step(fixed, ordered(1))
    emitted = step(fixed, raw(unreadable("u"), 2, headers=((REPLAY_OF, b"webhooks/0@0"),)))
    assert [one.key for one in on(emitted, WEBHOOKS) if one.value is None] == [b"u"]
    assert {one.topic for one in emitted} == ({WEBHOOKS} if is_known else {WEBHOOKS, OUTCOMES})
    assert not [one for one in emitted if b"user_1" in (one.value or b"")]


@pytest.mark.parametrize("table", [None, tables.DAILY_SUMMARY])
def test_a_rebuild_brings_back_nothing_of_an_unreadable_delivery_that_was_wiped(
    table: tables.Table | None,
):
    replayed = raw(unreadable("u"), 2, headers=((REPLAY_OF, b"webhooks/0@0"),))
    others = raw(unreadable("v", b"user_2"), 3)
    rebuild = Rebuild(Placement(PROVIDERS, "user_"), [MemoryStore()], 1_000, table)
    rebuild.apply(rebuild.reader.chunk([raw(unreadable("u")), ordered(1), replayed, others]))
    rows = rebuild.rows(tables.DAILY_SUMMARY, [0])
    assert [row.key for row in rows if row.after] == [b'["user_2","garmin","2026-07-01"]']


def test_unreadable_deliveries_with_the_name_of_a_wiped_user_are_removed_with_their_dead_letters():
    broken = intake_of(without_routing())
    users = [b"user_1", b"user_12", b"user_1", b"", b"user_1"]
    records = [raw(unreadable(f"u{at}", user), at) for at, user in enumerate(users)]
    records[3] = raw(received(event_id="u3", type=UNREADABLE, subject="", body=b"{'user_1"), 3)
    letters = on(step(broken, *records), DEAD_LETTERS)
    search = WipeSearch(forgotten(step(broken, ordered(5, fence=4))), 0)
    search.examine(WEBHOOKS, [records[0], records[1], *records[3:]])
    # The log may no longer have the delivery of a dead letter.
    search.examine(DEAD_LETTERS, map(read_back, letters))
    assert [one.key for one in search.removals(WEBHOOKS, [])] == [b"u0", b"u3"]
    removed = [letters[at].key for at in (0, 2, 3)]
    assert [one.key for one in search.removals(DEAD_LETTERS, [])] == removed


def test_a_dead_letter_of_a_hop_is_removed_though_its_delivery_is_in_another_partition():
    wipe = forgotten(step(at_work(), ordered(5)))
    letters = []
    for user in ("user_1", "user_2"):
        delivery = received(event_id=f"hop-{user}", reference=user)
        event = admitted(delivery, raw(delivery, 3), user, 3, NOW)
        key = delivery.event_id.encode()
        hop = read_back(Outgoing(EVENTS, 0, key, encode(event)))
        failure = ProcessingFailure("intake", "unexpected_error", "a bug")
        letters.append(dead_letter(hop, failure, now_ms=NOW, event_id=delivery.event_id))
    search = WipeSearch(wipe, 0)
    search.examine(DEAD_LETTERS, map(read_back, letters))
    assert [one.key for one in search.removals(DEAD_LETTERS, [])] == [letters[0].key]


def test_a_dead_letter_of_an_effect_is_removed_though_its_delivery_was_moved_since():
    wipe = forgotten(step(at_work(), ordered(5)))
    letters = []
    for user in ("user_1", "user_10"):
        effect = EffectDecided(
            event_id=f"moved-{user}", request_id="r", name="hi", workflow="daily_report",
            instance_id=user, command=StartRun(f'{{"user_id": "{user}"}}'),
        )  # fmt: skip
        decided = read_back(Outgoing(EFFECTS, 0, effect.event_id.encode(), encode(effect)))
        failure = ProcessingFailure("effects", "unexpected_error", "a bug")
        letters.append(dead_letter(decided, failure, now_ms=NOW, event_id=effect.event_id))
    search = WipeSearch(wipe, 0)
    search.examine(DEAD_LETTERS, map(read_back, letters))
    assert [one.key for one in search.removals(DEAD_LETTERS, [])] == [letters[0].key]


def test_an_unreadable_delivery_that_names_only_a_subject_of_another_partition_is_removed():
    broken = intake_of(without_routing())
    body = DAILY.replace(b'"t1"', b'"t7"')
    record = raw(received(event_id="u", type=UNREADABLE, subject="", body=body))
    (letter,) = on(step(broken, record), DEAD_LETTERS)
    order = WipeOrder("w1", "user_1", (1,), ("t7",))
    (record_of_order,) = order_records(order, 0, NOW)
    wipe = forgotten(step(broken, dataclasses.replace(read_back(record_of_order), offset=1)))
    assert wipe.digests == [digest("user_1"), digest("t7")]
    search = WipeSearch(wipe, 0)
    search.examine(WEBHOOKS, [record])
    search.examine(DEAD_LETTERS, [read_back(letter)])
    assert [one.key for one in search.removals(WEBHOOKS, [])] == [b"u"]
    assert [one.key for one in search.removals(DEAD_LETTERS, [])] == [letter.key]


@pytest.mark.parametrize(
    ("body", "is_theirs"),
    [
        ('{"id": "zoë/1"', True),
        (r'{"id": "zo\u00eb/1"', True),
        ("id=zoë/1", True),
        ('{"id": "zoë/12"', False),
        ('{"id": "a-zoë/1"', False),
    ],
)
def test_a_name_in_an_unreadable_body_may_be_escaped_and_is_no_part_of_another(
    body: str, is_theirs: bool
):
    wipe = msgspec.structs.replace(forgotten(step(at_work(), ordered(3))), names=["zoë/1"])
    search = WipeSearch(wipe, 0)
    kept = received(type=UNREADABLE, subject="", body=body.encode())
    search.examine(WEBHOOKS, [raw(kept)])
    assert bool(search.removals(WEBHOOKS, [])) == is_theirs


def back(after_ms: int, **more: object) -> WebhookReceived:
    """An auth of user_1 that was signed so much later than the wipe."""
    body = AUTH.replace(b"GARMIN", b"OURA")
    fields = {**AUTH_OF_1, "event_id": "back", "body": body, "sent_at_ms": NOW + after_ms}
    return received(**(fields | more))


@pytest.mark.parametrize(
    "names", [{"reference": "user_1"}, {"subject": "t1"}, {"reference": "t1", "subject": "t7"}]
)
@pytest.mark.parametrize("type_", ["daily", "deauth", "nutrition", "new_type"])
def test_what_names_a_wiped_user_or_connection_is_skipped_and_leaves_no_name(
    names: dict[str, object], type_: str
):
    intake = at_work()
    step(intake, ordered(3))
    emitted = step(intake, raw(received(event_id="late", type=type_, **names), 4))
    assert {(one.topic, one.value is None) for one in emitted} == {
        (OUTCOMES, False), (WEBHOOKS, True),
    }  # fmt: skip
    outcome = outcomes(emitted)["late"]
    assert (outcome.status, outcome.reason, outcome.subject) == ("skipped", "wiped", "")
    assert not [one for one in emitted if b"user_1" in (one.value or b"")]
    other = step(intake, raw(received(event_id="another", reference="user_2", subject="t2"), 5))
    assert outcomes(other)["another"].status == "processed"


def in_turn(intake: Owner, ends: list[int], order: WipeOrder, number: int) -> None:
    """The records of an order, read by all partitions."""
    for record in order_records(order, number, NOW):
        at = record.partition
        step(intake, dataclasses.replace(read_back(record), offset=ends[at]), at=at)
        ends[at] += 1


def test_what_is_received_between_the_fence_and_an_order_is_removed_in_every_partition():
    intake, at, home = intake_of(partitions=4), partition_of(b"t1", 4), partition_of(b"user_1", 4)
    assert at != home
    ends = [0] * 4

    def take(partition: int, **changes: object) -> list[Outgoing]:
        offset, ends[partition] = ends[partition], ends[partition] + 1
        return step(intake, raw(received(**changes), offset, partition=partition), at=partition)

    def days() -> set[tuple[str, ...]]:
        rows = intake.states[home].rows.of_user(tables.DAILY_SUMMARY, "user_1")
        return {row.key for row in rows}

    (hop,) = on(take(at, **AUTH_OF_1), EVENTS)
    step(intake, read_back(hop), at=home)
    fence = tuple(ends)
    between = [
        *on(take(at, event_id="between", subject="t1"), EVENTS),
        *take(home, event_id="here", reference="user_1", body=DAILY.replace(b"07-01", b"07-02")),
    ]
    step(intake, *(read_back(hop) for hop in on(between, EVENTS)), at=home)
    assert len(days()) == 2
    late = on(take(at, event_id="late", body=DAILY.replace(b"07-01", b"07-03")), EVENTS)
    in_turn(intake, ends, WipeOrder("w1", "user_1", fence), 0)
    skipped = take(at, event_id="after", body=DAILY.replace(b"07-01", b"07-04"))
    assert outcomes(skipped)["after"].reason == "wiped"
    in_turn(intake, ends, WipeOrder("w1", "user_1", tuple(ends)), 1)
    (removed,) = step(intake, read_back(late[0]), at=home)
    assert (removed.topic, removed.value) == (EVENTS, None)
    assert days() == set()


def test_the_second_order_of_a_wipe_starts_its_search_again_and_keeps_who_has_come_back():
    intake = at_work()
    first = forgotten(step(intake, ordered(3)))
    wipes = intake.states[0].wipes
    step(intake, raw(back(2_000), 4))
    second = received(
        event_id="wipe-2", source=SOURCE, type=TYPE, subject="user_1", received_at_ms=NOW,
        body=msgspec.json.encode(WipeOrder("w1", "user_1", (4,))),
    )  # fmt: skip
    again = forgotten(step(intake, raw(second, 5)))
    assert (again.fence, len(again.accepted)) == ([4], 2)
    assert wipes.record_found(WipeSearch(first, 0).done(NOW)) == []
    assert wipes.record_found(WipeSearch(again, 0).done(NOW))
    assert [one.topic for one in step(intake, ordered(3))] == [EFFECTS], "read again, and done"
    assert [one.topic for one in step(intake, raw(second, 5))] == [EFFECTS]


def test_a_record_that_was_in_a_topic_before_the_wipe_is_skipped_whenever_it_is_read():
    intake = at_work()
    order = WipeOrder("w1", "user_1", (3,), (), {"shop.orders": (7, 5)})
    (record,) = order_records(order, 0, NOW)
    step(intake, dataclasses.replace(read_back(record), offset=3))
    step(intake, raw(back(2_000), 4))
    year = {"reference": "user_1", "received_at_ms": NOW + 365 * DAY_MS}
    # Its time may be that of an event of last year, or of next year.
    sent = [NOW - 365 * DAY_MS, NOW + DAY_MS]
    for number, (origin, status) in enumerate(
        (
            ("shop.orders/0@6", "skipped"),
            ("shop.orders/0@7", "processed"),
            ("shop.orders/1@4", "skipped"),
            ("shop.orders/1@5", "processed"),
            ("shop.orders/2@0", "processed"),
            ("shop/0@0", "processed"),
            ("", "processed"),
        )
    ):
        for sent_at_ms in sent:
            event_id = f"late{number}/{sent_at_ms}"
            late = received(event_id=event_id, origin=origin, sent_at_ms=sent_at_ms, **year)
            emitted = step(intake, raw(late, 5 + number))
            assert outcomes(emitted)[event_id].status == status, origin
    other = received(
        event_id="o", reference="user_2", subject="t2", origin="shop.orders/0@0",
        received_at_ms=NOW * 2,
    )  # fmt: skip
    assert outcomes(step(intake, raw(other, 40)))["o"].status == "processed"


@pytest.mark.parametrize("type_", ["lab_report.failed", "lab_report.completed"])
@pytest.mark.parametrize("uploads_again", [True, False])
def test_a_report_that_names_only_its_user_counts_after_a_wipe_if_it_can_be_of_a_later_upload(
    type_: str, uploads_again: bool
):
    intake = at_work()
    step(intake, ordered(3))
    uploaded = LabUploaded(
        at_ms=NOW + 5_000, user_id="user_1", upload_id="up", storage_key="k", original_name="n",
        content_type="application/pdf", size=1,
    )  # fmt: skip
    if uploads_again:
        step(intake, raw(fact_of(uploaded, request_id="r", now_ms=NOW + 5_000), 4))
    for number, (sent_ms, status) in enumerate(
        ((NOW - 1_000, "skipped"), (NOW + 9_000, "processed" if uploads_again else "skipped"))
    ):
        report = received(
            event_id=f"r{number}", type=type_, subject="", reference="user_1",
            sent_at_ms=sent_ms, received_at_ms=NOW + 9_000,
            body=b'{"data": {"reference_id": "user_1", "report_date": "2026-06-01"}}',
        )  # fmt: skip
        outcome = outcomes(step(intake, raw(report, 5 + number)))[f"r{number}"]
        assert (outcome.status == "skipped" and outcome.reason == "wiped") == (status == "skipped")


def test_after_thirty_days_a_delivery_is_new_data():
    intake = at_work()
    step(intake, ordered(3))
    for days, status in ((29, "skipped"), (30, "processed")):
        late = received(event_id="late", reference="user_1", received_at_ms=NOW + days * DAY_MS)
        assert outcomes(step(intake, raw(late, 4 + days)))["late"].status == status


@pytest.mark.parametrize(
    ("changes", "comes_back"),
    [
        ({}, True),
        ({"type": "auth_success"}, True),
        ({"type": "user_reauth"}, False),
        ({"sent_at_ms": NOW - 1}, False),
        # A signature states a second, which may have begun before the wipe.
        ({"sent_at_ms": NOW // 1_000 * 1_000}, True),
        ({"body": AUTH.replace(b"success", b"error")}, False),
        ({"body": b"{"}, False),
    ],
)
def test_a_user_comes_back_by_an_auth_that_was_signed_after_the_wipe(
    changes: dict[str, object], comes_back: bool
):
    intake = at_work()
    step(intake, ordered(3))
    emitted = step(intake, raw(back(2_000, **changes), 4))
    status = "processed" if comes_back else "skipped"
    assert outcomes(emitted)["back"].status == status
    assert on(emitted, DEAD_LETTERS) == []
    for number, names in enumerate(({"reference": "user_1"}, {"subject": "t1"})):
        late = step(intake, raw(received(event_id=f"late{number}", **names), 5 + number))
        assert outcomes(late)[f"late{number}"].status == status


def test_the_bytes_of_a_skipped_delivery_are_new_once_the_user_has_come_back():
    intake = at_work()
    step(intake, ordered(3))
    late = received(event_id="late", reference="user_1")
    step(intake, raw(late, 4))
    step(intake, raw(back(2_000), 5))
    assert outcomes(step(intake, raw(late, 6)))["late"].status == "processed"


def test_an_auth_with_the_bytes_of_a_wiped_one_is_its_copy_unless_terra_has_another_time_for_it():
    intake = intake_of()
    step(intake, raw(switched("auth", 1)))
    step(intake, ordered(1, at_ms=NOW + 5_000))
    (removed,) = step(intake, raw(switched("auth", 9), 2))
    assert (removed.topic, removed.value) == (WEBHOOKS, None)
    (outcome,) = outcomes(step(intake, raw(switched("auth", 9, NOW + 8_500), 3))).values()
    assert outcome.status == "processed"


def test_that_a_user_has_come_back_outlives_restarts_and_the_end_of_the_search():
    intake = at_work()
    wipe = forgotten(step(intake, ordered(3)))
    emitted = step(intake, raw(back(2_000), 4))
    accepted = forgotten(emitted)
    assert [name.sha256 for name in accepted.accepted] == [digest("user_1"), digest("t1")]
    (done,) = intake.states[0].wipes.record_found(WipeSearch(wipe, 0).done(NOW))
    assert decode(done.value, UserForgotten).accepted == accepted.accepted
    restart = intake_of()
    restored(restart, read_back(done))
    late = received(event_id="late", reference="user_1")
    assert outcomes(step(restart, raw(late, 9)))["late"].status == "processed"
    again = step(restart, ordered(10, wipe_id="w2", at_ms=NOW + 9_000))
    assert forgotten(again).accepted == ()
    more = received(event_id="more", reference="user_1", received_at_ms=NOW + 9_001)
    assert outcomes(step(restart, raw(more, 11)))["more"].reason == "wiped"


def test_a_rebuild_knows_since_when_a_user_is_accepted_in_whatever_order_it_reads_partitions():
    intake, at, home = intake_of(partitions=4), partition_of(b"t1", 4), partition_of(b"user_1", 4)
    body = msgspec.json.encode(WipeOrder("w1", "user_1", (0, 0, 0, 0)))
    wipe = received(event_id="wipe", source=SOURCE, type=TYPE, subject="user_1", body=body)
    auth = back(2_000, received_at_ms=NOW + 2_000)
    skipped = received(event_id="early", reference="user_1", received_at_ms=NOW + 1_000)
    counted = received(
        event_id="late", reference="user_1", received_at_ms=NOW + 3_000,
        body=DAILY.replace(b"100", b"200"),
    )  # fmt: skip
    log = {
        number: [dataclasses.replace(raw(one, offset), partition=number)
                 for offset, one in enumerate(deliveries)]
        for number, deliveries in ((at, [wipe, auth]), (home, [wipe, skipped, counted]))
    }  # fmt: skip
    step(intake, *log[home][:2], at=home)
    emitted = step(intake, *log[at], at=at)
    accepted = step(intake, read_back(on(emitted, EVENTS)[0]), at=home)
    step(intake, log[home][2], at=home)
    for order in ((at, home), (home, at)):
        rebuild = Rebuild(Placement(PROVIDERS, "user_"), [MemoryStore() for _ in range(4)], 1_000)
        rebuild.note_accepted(home, map(read_back, on(accepted, WIPES)))
        for number in order:
            rebuild.apply(rebuild.reader.chunk(log[number]))
        (rebuilt,) = rebuild.rows(tables.DAILY_SUMMARY, [0] * 4)
        assert rebuilt.after is not None
        row = decode_row(tables.DAILY_SUMMARY, rebuilt.after)
        assert row.values[tables.DAILY_SUMMARY.index["steps"]] == 200
        assert row == intake.states[home].rows.get(tables.DAILY_SUMMARY, row.key)


def test_every_partition_that_hears_of_a_user_accepts_the_user_again():
    intake, at, home = intake_of(partitions=4), partition_of(b"t1", 4), partition_of(b"user_1", 4)
    assert at != home
    for number in (at, home):
        body = msgspec.json.encode(WipeOrder("w1", "user_1", (0, 0, 0, 0)))
        wipe = received(event_id="wipe", source=SOURCE, type=TYPE, subject="user_1", body=body)
        step(intake, raw(wipe), at=number)
    daily = received(event_id="late", reference="user_1")
    assert outcomes(step(intake, raw(daily, 1), at=home))["late"].reason == "wiped"
    (hop,) = on(step(intake, raw(back(2_000), 1), at=at), EVENTS)
    step(intake, read_back(hop), at=home)
    assert outcomes(step(intake, raw(daily, 2), at=home))["late"].status == "processed"


@pytest.mark.parametrize("topic", [EVENTS, UNRESOLVED])
def test_a_hop_that_comes_late_is_removed(topic: str):
    intake = intake_of(partitions=4)
    changes = {} if topic == EVENTS else {"subject": "t1"}
    at = next(n for n in range(4) if n != 0)
    step(intake, raw(received(**AUTH_OF_1)), at=0)
    result = [
        hop
        for number, partition in enumerate(range(4))
        for hop in on(
            step(
                intake,
                raw(received(event_id=f"e{number}", reference="user_1", **changes), number),
                at=partition,
            )
            if topic == EVENTS
            else step(intake, raw(received(**AUTH_OF_1), number + 1), at=partition),
            topic,
        )
    ]
    hop = result[0]
    body = msgspec.json.encode(WipeOrder("w1", "user_1", (9, 9, 9, 9)))
    wipe = received(event_id="wipe", source=SOURCE, type=TYPE, subject="user_1", body=body)
    step(intake, raw(wipe, 9), at=hop.partition)
    (removed,) = step(intake, read_back(hop), at=hop.partition)
    assert (removed.topic, removed.key, removed.value) == (topic, hop.key, None)
    assert step(intake, read_back(removed), at=hop.partition) == []
    assert at


def test_an_order_that_is_read_again_after_a_crash_goes_on_and_after_its_end_does_nothing():
    intake = at_work()
    first = step(intake, ordered(3))
    restart = intake_of()
    restored(restart, *(read_back(record) for record in on(first, WIPES)))
    again = forgotten(step(restart, ordered(3)))
    assert (again.names, again.found) == (["user_1", "t1"], forgotten(first).found)
    done = WipeSearch(again, 0).done(NOW)
    (said,) = restart.states[0].wipes.record_found(done)
    assert (restart.states[0].wipes.pending(), decode(said.value, UserForgotten).names) == ([], [])
    assert [record.topic for record in step(restart, ordered(3))] == [EFFECTS]


def test_a_search_that_was_cut_off_amid_its_removals_still_tells_all_that_it_found():
    intake = at_work()
    letters = step(intake, raw(received(event_id="bad", body=b"7", reference="user_1"), 3))
    wipe = forgotten(step(intake, ordered(4)))
    deliveries = [raw(received(event_id=f"e{at}", reference="user_1"), at) for at in range(4)]
    said = [read_back(record) for record in on(letters, OUTCOMES)]
    first = WipeSearch(wipe, 0)
    first.examine(OUTCOMES, said)
    first.examine(WEBHOOKS, deliveries)
    first.examine(DEAD_LETTERS, [read_back(record) for record in on(letters, DEAD_LETTERS)])
    (counted,) = intake.states[0].wipes.record_found(first.counted())
    assert first.removals(DEAD_LETTERS, [])
    assert first.removals(WEBHOOKS, [])
    assert intake.states[0].wipes.pending(), "it is not done"
    restart = intake_of()
    restored(restart, read_back(counted))
    (left,) = restart.states[0].wipes.pending()
    second = WipeSearch(left, 0)
    second.examine(OUTCOMES, said)
    second.examine(WEBHOOKS, [dataclasses.replace(deliveries[0], value=None), *deliveries[1:]])
    done = second.done(NOW)
    result = dict(zip(done.found, done.counts, strict=True))
    assert (result["raw_events"], result["traces"], result["dead_letters"]) == (4, 1, 1)


def test_a_delivery_that_a_copy_took_with_it_is_counted_and_what_went_before_the_order_is_not():
    wipe = forgotten(step(at_work(), ordered(4, fence=4)))
    search = WipeSearch(wipe, 0)
    deliveries = [raw(received(event_id=f"e{at}", reference="user_1"), at) for at in range(3)]
    earlier = dataclasses.replace(raw(received(event_id="e1"), 3), value=None)
    since = dataclasses.replace(raw(received(event_id="e0"), 9), value=None)
    search.examine(WEBHOOKS, [*deliveries, earlier, since])
    done = search.done(NOW)
    assert dict(zip(done.found, done.counts, strict=True))["raw_events"] == 2
    assert [record.key for record in search.removals(WEBHOOKS, [])] == [b"e2"]


def test_an_order_that_is_read_again_amid_its_tombstones_tells_all_rows():
    intake = at_work()
    step(
        intake,
        raw(
            received(event_id="next", reference="user_1", body=DAILY.replace(b"07-01", b"07-02")), 3
        ),
    )
    first = step(intake, ordered(4))
    days = on(first, DAILY_SUMMARY)
    assert len(days) == 2
    restart = at_work()
    restored(restart, read_back(on(first, WIPES)[0]))
    again = forgotten(step(restart, ordered(4)))
    assert dict(zip(again.found, again.counts, strict=True))["daily_summary"] == 2


def test_a_wipe_completes_the_one_before_it_that_was_not_done():
    intake = at_work()
    first = forgotten(step(intake, ordered(3)))
    second = forgotten(step(intake, ordered(4, wipe_id="w2")))
    assert (second.wipe_id, second.names) == ("w2", first.names), "it looks for all of them"
    assert (second.found, second.counts) == (first.found, first.counts)


def test_the_search_finds_what_is_theirs_in_every_topic_and_nothing_of_others():
    intake = at_work()
    emitted = {
        "auth": step(intake_of(), raw(received(**AUTH_OF_1))),
        "mine": step(intake, raw(received(event_id="mine", reference="user_1"), 3)),
        "bad": step(intake, raw(received(event_id="bad", body=b"7", reference="user_1"), 4)),
        "other": step(intake, raw(received(event_id="else", body=b"7", reference="user_2"), 5)),
    }
    wipe = forgotten(step(intake, ordered(6)))
    search = WipeSearch(wipe, 0)
    said = [record for records in emitted.values() for record in records]
    said_of = [read_back(record) for record in on(said, OUTCOMES)]
    search.examine(OUTCOMES, said_of)
    assert {r.key for r in search.removals(OUTCOMES, [])} == {b"auth", b"mine", b"bad"}
    deliveries = [
        raw(received(event_id="named", reference="user_1"), 0),
        raw(received(event_id="unnamed", subject="t1"), 1),
        raw(received(event_id="twice", reference="user_1"), 2),
        dataclasses.replace(raw(received(event_id="twice"), 3), value=None),
        raw(received(event_id="else", reference="user_10", subject="t10"), 4),
        ordered(6),
        raw(received(event_id="new", reference="user_1"), 7),
    ]
    search.examine(WEBHOOKS, deliveries)
    assert {r.key for r in search.removals(WEBHOOKS, [])} == {b"named", b"unnamed", b"wipe-w1"}
    letters = [read_back(record) for record in on(said, DEAD_LETTERS)]
    search.examine(DEAD_LETTERS, letters)
    search.exclude(said_of)
    assert [r.key for r in search.removals(DEAD_LETTERS, [])] == [letters[0].key]
    counts = search.done(NOW)
    result = dict(zip(counts.found, counts.counts, strict=True))
    assert (result["raw_events"], result["traces"], result["dead_letters"]) == (2, 3, 1)


def test_an_effect_of_another_users_delivery_that_mentions_the_user_stays():
    intake = at_work()
    theirs = step(intake, raw(received(event_id="else", reference="user_2"), 3))
    wipe = forgotten(step(intake, ordered(6)))
    search = WipeSearch(wipe, 0)
    others = [read_back(record) for record in on(theirs, OUTCOMES)]
    search.examine(OUTCOMES, others)
    assert "else" not in repr(vars(search)), "its memory would grow with all deliveries"
    effects = [
        EffectDecided(
            event_id=event_id,
            request_id="r",
            name="rule",
            workflow="invite",
            instance_id=event_id,
            command=StartRun('{"friend": "user_1"}'),
        )
        for event_id in ("else", "removed")
    ]
    records = [
        read_back(Outgoing(EFFECTS, 0, effect.event_id.encode(), encode(effect)))
        for effect in effects
    ]
    search.examine(EFFECTS, records)
    search.exclude(others)
    assert [record.key for record in search.removals(EFFECTS, [])] == [b"removed"]

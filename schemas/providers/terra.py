"""Terra's payloads, as far as Headwater uses them; other fields are ignored.

Numbers are decoded as floats: Terra documents integers and sends `11894.0` for some wearables. A
field of the wrong type is left out and named (`Delivery.wrong`); nothing is guessed. A record that
is no object is `Unreadable`. The other records of its delivery are decoded.

Source: Terra's webhook reference (spec 2026.07.17.1) and the structures that the pipeline received.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Generic, TypeAlias, TypeVar, get_args

import msgspec

from headwater.schemas.errors import PARSE_ERRORS, MalformedPayload, excerpt
from headwater.schemas.providers.lenient import read_struct

R = TypeVar("R")
S = TypeVar("S", bound=msgspec.Struct)


class User(msgspec.Struct, frozen=True):
    """The `user`, `new_user` or `old_user` of a delivery."""

    user_id: str | None = None
    provider: str | None = None
    reference_id: str | None = None
    scopes: str | None = None
    last_webhook_update: str | None = None


class Envelope(msgspec.Struct, frozen=True):
    """The part of a body that contains its type and the person it is about."""

    type: str | None = None
    status: str | None = None
    user: User | None = None
    new_user: User | None = None
    old_user: User | None = None
    reference_id: str | None = None
    upload_id: str | None = None
    data: msgspec.Raw = msgspec.Raw()

    @property
    def is_lab_report(self) -> bool:
        """Whether it is a lab report without a type: an upload id, an array of data."""
        return (
            not self.type
            and isinstance(self.upload_id, str)
            and bytes(self.data).lstrip()[:1] == b"["
        )


class Metadata(msgspec.Struct, frozen=True):
    """Start and end of a record, RFC 3339 with the wearer's own offset."""

    start_time: str | None = None
    end_time: str | None = None


class Dated(msgspec.Struct, frozen=True):
    """Common fields of records about a day: the day, in one of several fields."""

    metadata: Metadata | None = None
    summary_date: str | None = None
    date: str | None = None
    day: str | None = None


class HeartRateSummary(msgspec.Struct, frozen=True):
    """Beats per minute, and RMSSD in milliseconds."""

    resting_hr_bpm: float | None = None
    avg_hrv_rmssd: float | None = None


class HeartRate(msgspec.Struct, frozen=True):
    """`heart_rate_data`."""

    summary: HeartRateSummary | None = None


class Distance(msgspec.Struct, frozen=True):
    """`distance_data`."""

    steps: float | None = None


class ActiveDurations(msgspec.Struct, frozen=True):
    """`active_durations_data`, in seconds."""

    low_intensity_seconds: float | None = None
    moderate_intensity_seconds: float | None = None
    vigorous_intensity_seconds: float | None = None


class Stress(msgspec.Struct, frozen=True):
    """`stress_data`, 0 to 100."""

    avg_stress_level: float | None = None


class Strain(msgspec.Struct, frozen=True):
    """`strain_data`."""

    strain_level: float | None = None


class Scores(msgspec.Struct, frozen=True):
    """`scores`, 0 to 100."""

    recovery: float | None = None
    sleep: float | None = None


class Readiness(msgspec.Struct, frozen=True):
    """`readiness_data`, 0 to 100; where Whoop puts its recovery.

    Other makers' readiness is not stored, so its type is not checked here.
    """

    readiness: object = None


class Daily(Dated, frozen=True):
    """One record of a `daily` delivery."""

    distance_data: Distance | None = None
    heart_rate_data: HeartRate | None = None
    active_durations_data: ActiveDurations | None = None
    stress_data: Stress | None = None
    strain_data: Strain | None = None
    scores: Scores | None = None


class Asleep(msgspec.Struct, frozen=True):
    """Seconds asleep, by stage."""

    duration_asleep_state_seconds: float | None = None
    duration_deep_sleep_state_seconds: float | None = None
    duration_light_sleep_state_seconds: float | None = None
    duration_REM_sleep_state_seconds: float | None = None  # noqa: N815, Terra's own spelling


class Awake(msgspec.Struct, frozen=True):
    """Seconds awake."""

    duration_awake_state_seconds: float | None = None


class SleepDurations(msgspec.Struct, frozen=True):
    """`sleep_durations_data`."""

    asleep: Asleep | None = None
    awake: Awake | None = None


class Breaths(msgspec.Struct, frozen=True):
    """Breaths per minute."""

    avg_breaths_per_min: float | None = None


class OxygenSaturation(msgspec.Struct, frozen=True):
    """Percent."""

    avg_saturation_percentage: float | None = None


class Respiration(msgspec.Struct, frozen=True):
    """`respiration_data`."""

    breaths_data: Breaths | None = None
    oxygen_saturation_data: OxygenSaturation | None = None


class Temperature(msgspec.Struct, frozen=True):
    """`temperature_data`: degrees Celsius from the wearer's baseline."""

    delta: float | None = None


class SleepMetadata(Metadata, frozen=True):
    """Start and end of a sleep, and its id."""

    summary_id: str | None = None
    is_nap: bool | None = None


class Sleep(msgspec.Struct, frozen=True):
    """One record of a `sleep` delivery."""

    metadata: SleepMetadata = SleepMetadata()
    sleep_durations_data: SleepDurations | None = None
    heart_rate_data: HeartRate | None = None
    respiration_data: Respiration | None = None
    temperature_data: Temperature | None = None
    readiness_data: Readiness | None = None
    scores: Scores | None = None


class ActivityMetadata(Metadata, frozen=True):
    """Start and end of a workout, and its kind."""

    summary_id: str | None = None
    name: str | None = None
    type: float | None = None


class ActivityHeartRateSummary(msgspec.Struct, frozen=True):
    """Beats per minute."""

    avg_hr_bpm: float | None = None
    max_hr_bpm: float | None = None


class ActivityHeartRate(msgspec.Struct, frozen=True):
    """`heart_rate_data` of an activity."""

    summary: ActivityHeartRateSummary | None = None


class ActivityDistanceSummary(msgspec.Struct, frozen=True):
    """Meters and steps."""

    distance_meters: float | None = None
    steps: float | None = None


class ActivityDistance(msgspec.Struct, frozen=True):
    """`distance_data` of an activity, one level deeper than that of a day."""

    summary: ActivityDistanceSummary | None = None


class Calories(msgspec.Struct, frozen=True):
    """`calories_data`, in kilocalories."""

    total_burned_calories: float | None = None


class Activity(msgspec.Struct, frozen=True):
    """One record of an `activity` delivery."""

    metadata: ActivityMetadata = ActivityMetadata()
    distance_data: ActivityDistance | None = None
    calories_data: Calories | None = None
    heart_rate_data: ActivityHeartRate | None = None
    strain_data: Strain | None = None


class Measurement(msgspec.Struct, frozen=True):
    """One of `measurements_data.measurements`."""

    measurement_time: str | None = None
    weight_kg: float | None = None
    bodyfat_percentage: float | None = None


class Measurements(msgspec.Struct, frozen=True):
    """`measurements_data`."""

    measurements: tuple[Measurement, ...] | None = None
    day_avg_weight_kg: float | None = None
    day_avg_bodyfat_percentage: float | None = None


class BloodPressureSample(msgspec.Struct, frozen=True):
    """Millimeters of mercury."""

    timestamp: str | None = None
    systolic_bp: float | None = None
    diastolic_bp: float | None = None


class BloodPressure(msgspec.Struct, frozen=True):
    """`blood_pressure_data`."""

    blood_pressure_samples: tuple[BloodPressureSample, ...] | None = None
    day_avg_systolic_bp: float | None = None
    day_avg_diastolic_bp: float | None = None


class Body(Dated, frozen=True):
    """One record of a `body` delivery; of its glucose only whether there is any."""

    measurements_data: Measurements | None = None
    blood_pressure_data: BloodPressure | None = None
    glucose_data: dict[str, msgspec.Raw] | None = None


class Unreadable(msgspec.Struct, frozen=True):
    """A record that is no JSON object, or cannot be parsed."""

    detail: str


class Delivery(msgspec.Struct, Generic[R], frozen=True):
    """A delivery of records.

    Attributes:
        wrong: Paths of fields with a wrong type, which were left out.
    """

    user: User
    data: tuple[R | Unreadable, ...]
    wrong: tuple[str, ...] = ()


#: A record with the JSON text it was parsed from: sessions and workouts store it byte for byte.
Night: TypeAlias = tuple[Sleep, str]
Workout: TypeAlias = tuple[Activity, str]


class _DailyBody(msgspec.Struct, frozen=True):
    user: User = User()
    data: tuple[Daily, ...] | None = None


class _RawBody(msgspec.Struct, frozen=True):
    user: msgspec.Raw = msgspec.Raw(b"{}")
    data: tuple[msgspec.Raw, ...] | None = None


_ENVELOPE: Final = msgspec.json.Decoder(Envelope)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_DAILY_BODY: Final = msgspec.json.Decoder(_DailyBody)
_RAW_BODY: Final = msgspec.json.Decoder(_RawBody)
_USER: Final = msgspec.json.Decoder(User)
_DAILY: Final = msgspec.json.Decoder(Daily)
_SLEEP: Final = msgspec.json.Decoder(Sleep)
_ACTIVITY: Final = msgspec.json.Decoder(Activity)
_BODY: Final = msgspec.json.Decoder(Body)


def decode_envelope(body: bytes) -> Envelope:
    """Decode the type of a body and the person it is about.

    A field of another type counts as absent: what else a delivery contains is worth keeping.

    Raises:
        MalformedPayload: It is not a JSON object; the message has the details.
    """
    try:
        return _ENVELOPE.decode(body)
    except msgspec.ValidationError:
        return _without_misfits(Envelope, _members(body))
    except PARSE_ERRORS as error:
        raise MalformedPayload(f"expected JSON, found {excerpt(body)}: {error}") from error


def _members(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of an object as they are encoded.

    Raises:
        MalformedPayload: It is not a JSON object.
    """
    try:
        return _MEMBERS.decode(body)
    except PARSE_ERRORS as error:
        raise MalformedPayload(f"expected a JSON object, found {excerpt(body)}: {error}") from error


def _without_misfits(kind: type[S], members: Mapping[str, msgspec.Raw]) -> S:
    """Return a struct of the members of an object; those of another type are left out."""
    values = {}
    for field in msgspec.structs.fields(kind):
        member = members.get(field.encode_name)
        if member is None:
            continue
        with suppress(*PARSE_ERRORS):
            values[field.name] = msgspec.json.decode(member, type=field.type)
            continue
        if User in get_args(field.type):
            with suppress(MalformedPayload):
                values[field.name] = _without_misfits(User, _members(bytes(member)))
    return kind(**values)


def decode_daily(body: bytes) -> Delivery[Daily]:
    """Decode a `daily` delivery.

    Raises:
        MalformedPayload: It is no JSON object, or its data is no array.
    """
    try:
        whole = _DAILY_BODY.decode(body)
    except PARSE_ERRORS:
        return _record_by_record(body, Daily, _DAILY.decode, _plain)
    return Delivery(whole.user, whole.data or ())


def decode_sleep(body: bytes) -> Delivery[Night]:
    """Decode a `sleep` delivery.

    Raises:
        MalformedPayload: It is no JSON object, or its data is no array.
    """
    return _record_by_record(body, Sleep, _SLEEP.decode, _with_text)


def decode_activity(body: bytes) -> Delivery[Workout]:
    """Decode an `activity` delivery.

    Raises:
        MalformedPayload: It is no JSON object, or its data is no array.
    """
    return _record_by_record(body, Activity, _ACTIVITY.decode, _with_text)


def decode_body(body: bytes) -> Delivery[Body]:
    """Decode a `body` delivery.

    Raises:
        MalformedPayload: It is no JSON object, or its data is no array.
    """
    return _record_by_record(body, Body, _BODY.decode, _plain)


def _plain(record: S, raw: msgspec.Raw) -> S:
    del raw
    return record


def _with_text(record: S, raw: msgspec.Raw) -> tuple[S, str]:
    return record, bytes(raw).decode()


def _record_by_record(
    body: bytes,
    kind: type[S],
    decode: Callable[[msgspec.Raw], S],
    made_of: Callable[[S, msgspec.Raw], R],
) -> Delivery[R]:
    """Decode the records one by one, those with fields of a wrong type without these fields."""
    try:
        raw = _RAW_BODY.decode(body)
    except PARSE_ERRORS as error:
        raise MalformedPayload(str(error)) from error
    wrong: list[str] = []
    records: list[R | Unreadable] = []
    for number, record in enumerate(raw.data or ()):
        try:
            parsed = decode(record)
        except PARSE_ERRORS as error:
            lenient = lenient_record(kind, record, f"data[{number}]", wrong)
            if lenient is None:
                records.append(Unreadable(str(error)))
                continue
            parsed = lenient
        records.append(made_of(parsed, record))
    return Delivery(_user(raw.user), tuple(records), tuple(wrong))


def _user(raw: msgspec.Raw) -> User:
    """Return the user of a delivery; fields of a wrong type count as absent.

    Raises:
        MalformedPayload: It is not JSON.
    """
    try:
        return _USER.decode(raw)
    except msgspec.ValidationError:
        return lenient_record(User, raw, "user", []) or User()
    except PARSE_ERRORS as error:
        raise MalformedPayload(str(error)) from error


def lenient_record(kind: type[S], raw: msgspec.Raw, path: str, wrong: list[str]) -> S | None:
    """Return a record without its fields of a wrong type; None if it is no JSON object.

    Args:
        kind: Its struct.
        raw: Its JSON text.
        path: Its path in the delivery.
        wrong: Receives the paths of the fields that were left out.
    """
    try:
        value = msgspec.json.decode(raw)
    except PARSE_ERRORS:
        return None
    return read_struct(kind, value, path, wrong) if isinstance(value, dict) else None

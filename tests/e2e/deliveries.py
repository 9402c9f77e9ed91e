"""Bodies as Terra sends them, for a few users, drawn from a seed."""

import json
import random

Json = dict[str, object]


def body(kind: str, **fields: object) -> bytes:
    return json.dumps({"type": kind, **fields}).encode()


def terra_user(number: int, reference: str | None = None, provider: str = "GARMIN") -> Json:
    return {"user_id": f"terra-{number}", "provider": provider, "reference_id": reference}


def auth(number: int) -> bytes:
    return body("auth", status="success", user=terra_user(number, f"user_{number}"))


def daily(number: int, day: int, steps: int, *, known: bool = False, **more: object) -> bytes:
    record = {
        "metadata": {
            "start_time": f"2026-06-{day:02}T00:00:00.000000+01:00",
            "end_time": f"2026-06-{day:02}T23:59:00.000000+01:00",
        },
        "distance_data": {"steps": steps},
        "heart_rate_data": {"summary": {"resting_hr_bpm": 50 + steps % 20}},
        "scores": {"sleep": None, "recovery": steps % 100},
    }
    reference = f"user_{number}" if known else None
    return body("daily", user=terra_user(number, reference), data=[record | more])


def sleep(number: int, day: int, minutes: int, *, known: bool = False) -> bytes:
    record = {
        "metadata": {
            "start_time": f"2026-06-{day:02}T23:10:00.000000+01:00",
            "end_time": f"2026-06-{day + 1:02}T06:50:00.000000+01:00",
        },
        "heart_rate_data": {"summary": {"resting_hr_bpm": 40 + minutes % 10}},
        "sleep_durations_data": {"asleep": {"duration_asleep_state_seconds": minutes * 60}},
        "readiness_data": {"readiness": minutes % 100},
    }
    reference = f"user_{number}" if known else None
    return body("sleep", user=terra_user(number, reference), data=[record])


def mixed(seed: int, count: int, *, users: int = 12) -> list[bytes]:
    """Deliveries of all kinds: users named and not, connections early and late, copies, rubbish."""
    draw = random.Random(seed)
    made = [auth(number) for number in range(users - 1)]  # The last user never connects.
    while len(made) < count:
        number, day = draw.randrange(users), draw.randint(1, 28)
        known = draw.random() < 0.5
        made.append(
            draw.choice(
                [
                    daily(number, day, draw.randint(1, 20_000), known=known),
                    daily(number, day, draw.randint(1, 20_000), known=known),
                    sleep(number, day, draw.randint(200, 500), known=known),
                    body("nutrition", user=terra_user(number), day=day, n=draw.random()),
                    # June has no such day.
                    daily(number, 31, draw.randint(1, 1_000), known=known),
                ]
            )
        )
        if draw.random() < 0.1:
            made.append(draw.choice(made))
    draw.shuffle(made)
    return made

"""Time in the forms that the protocols use. Inside Twinbus a time is Unix milliseconds.

An unlimited duration is `UNLIMITED_MS`; on the wire it is .NET's largest TimeSpan.
"""

import re
from datetime import UTC, datetime, timedelta

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000

# .NET's TimeSpan.MaxValue, in whole milliseconds: 10675199 days 2:48:05.477.
UNLIMITED_MS = 922_337_203_685_477
UNLIMITED_ISO = "P10675199DT2H48M5.4775807S"

# .NET counts 100 ns ticks from the year 1.
_EPOCH_TICKS = 621_355_968_000_000_000
_DATETIME_MIN_MS = -62_135_596_800_000
_DATETIME_MAX_MS = 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_DURATION = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,12})(?:\.(?P<fraction>\d{1,9}))?S)?)?"
)


def ticks_from_ms(unix_ms: int) -> int:
    """Turn Unix milliseconds into .NET ticks."""
    return unix_ms * 10_000 + _EPOCH_TICKS


def duration_from_iso(text: str) -> int:
    """Read an ISO-8601 duration as milliseconds; anything huge is unlimited."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or text.strip() in ("P", "PT") or text.strip().endswith("T"):
        raise ValueError(f"'{text}' is not a duration: write it like PT30S, PT5M or P14D")
    part = match.groupdict(default="0")
    fraction_ms = int((part["fraction"] + "000")[:3])
    total = (
        int(part["days"]) * DAY_MS
        + int(part["hours"]) * HOUR_MS
        + int(part["minutes"]) * MINUTE_MS
        + int(part["seconds"]) * SECOND_MS
        + fraction_ms
    )
    return min(total, UNLIMITED_MS)


def duration_to_iso(duration_ms: int) -> str:
    """Write milliseconds as an ISO-8601 duration, the way Service Bus does."""
    if duration_ms >= UNLIMITED_MS:
        return UNLIMITED_ISO
    days, rest = divmod(duration_ms, DAY_MS)
    hours, rest = divmod(rest, HOUR_MS)
    minutes, rest = divmod(rest, MINUTE_MS)
    seconds, millis = divmod(rest, SECOND_MS)
    time = f"{hours}H" if hours else ""
    time += f"{minutes}M" if minutes else ""
    if millis:
        time += f"{seconds}.{millis:03d}S"
    elif seconds or not (days or hours or minutes):
        time += f"{seconds}S"
    return "P" + (f"{days}D" if days else "") + (f"T{time}" if time else "")


def time_to_iso(unix_ms: int) -> str:
    """Write Unix milliseconds as an ISO-8601 time in UTC."""
    moment = datetime_from_ms(unix_ms).replace(tzinfo=None)
    return moment.isoformat(timespec="microseconds") + "Z"


def time_from_iso(text: str) -> datetime:
    """Read an ISO-8601 time; one without an offset is taken as UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def datetime_from_ms(unix_ms: int) -> datetime:
    """Give an aware UTC datetime, held inside what datetime can express."""
    held = max(_DATETIME_MIN_MS, min(unix_ms, _DATETIME_MAX_MS))
    return _EPOCH + timedelta(milliseconds=held)


def ms_from_datetime(moment: datetime) -> int:
    """Give Unix milliseconds; a naive datetime is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)

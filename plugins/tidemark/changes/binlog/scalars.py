"""Decimals, dates and times as the text that the server prints. Zero and partial dates stay what they are.

Sources: `decimal.cc` and `my_time.cc` of MySQL, "Date and Time Data Type Representation" of its internals manual.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache

from tidemark.errors import CorruptionError, UnsupportedError

_SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # bytes of 0 to 9 decimal digits
_EPOCH = datetime(1970, 1, 1)


def decimal_size(precision: int, scale: int) -> int:
    """The bytes of a DECIMAL(precision, scale)."""
    return sum(_SIZES[width] for width in decimal_groups(precision, scale))


@cache
def decimal_groups(precision: int, scale: int) -> tuple[int, ...]:
    """How many digits each group of a DECIMAL(precision, scale) has."""
    whole = precision - scale
    if not (0 < precision <= 65 and 0 <= scale <= 38 and whole >= 0):
        raise CorruptionError(f"a DECIMAL({precision},{scale})")
    groups = (whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9)
    return tuple(width for width in groups if width)


def read_decimal(data: bytes, precision: int, scale: int) -> str:
    """Groups of nine digits in four bytes, big-endian; the sign is the first bit; negative numbers are inverted."""
    size = decimal_size(precision, scale)
    if len(data) != size:
        raise CorruptionError(f"a DECIMAL({precision},{scale}) of {len(data)} bytes")
    is_negative = data[0] < 0x80
    mask = 0xFF if is_negative else 0
    raw = bytes([data[0] ^ 0x80 ^ mask, *(byte ^ mask for byte in data[1:])])
    whole = precision - scale
    digits, at = "", 0
    for width in decimal_groups(precision, scale):
        number = int.from_bytes(raw[at : at + _SIZES[width]], "big")
        if number >= 10**width:
            raise CorruptionError(f"{number} stands for {width} digits of a DECIMAL")
        digits += f"{number:0{width}d}"
        at += _SIZES[width]
    text = digits[:whole].lstrip("0") or "0"
    if scale:
        text += "." + digits[whole:]
    return f"-{text}" if is_negative and digits.strip("0") else text


def date_text(year: int, month: int, day: int) -> str:
    return f"{year:04d}-{month:02d}-{day:02d}"


def read_date(data: bytes) -> str:
    """Three bytes, little-endian: day in 5 bits, month in 4, year."""
    value = int.from_bytes(data, "little")
    return date_text(value >> 9, value >> 5 & 15, value & 31)


def read_old_time(data: bytes) -> str:
    """TIME of before MySQL 5.6: hhmmss as a number."""
    value = int.from_bytes(data, "little", signed=True)
    sign, value = ("-", -value) if value < 0 else ("", value)
    return f"{sign}{value // 10000:02d}:{value // 100 % 100:02d}:{value % 100:02d}"


def read_old_datetime(data: bytes) -> str:
    """DATETIME of before MySQL 5.6: YYYYMMDDhhmmss as a number. A log tells a DATETIME(6) of MariaDB 5.3 to 10.0 as the same
    type, and has another number of eight bytes there."""
    date, time = divmod(int.from_bytes(data, "little"), 1_000_000)
    year, month, day = date // 10000, date // 100 % 100, date % 100
    hour, minute, second = time // 10000, time // 100 % 100, time % 100
    if year > 9999 or month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise UnsupportedError(
            "a DATETIME whose digits of a second the log does not tell",
            hint="leave its table out (exclude); where the server's catalog has it as `/* mariadb-5.3 */`, ALTER TABLE …"
            " FORCE gives it the form of today, and then changes bootstrap reads it",
        )
    return f"{date_text(year, month, day)} {hour:02d}:{minute:02d}:{second:02d}"


def read_timestamp(data: bytes, digits: int) -> str:
    """Seconds since 1970 in four bytes, big-endian, then the fraction. In UTC. 0 is the zero date."""
    seconds, fraction = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:], "big")
    if seconds == 0 and fraction == 0:
        return "0000-00-00 00:00:00" + _fraction(0, digits)
    return str(_EPOCH + timedelta(seconds=seconds)) + _fraction(fraction, digits)


def read_datetime(data: bytes, digits: int) -> str:
    """Forty bits, big-endian, from 0x8000000000 on: year · 13 + month in 17 bits, day, hour, minute, second."""
    return _datetime(int.from_bytes(data[:5], "big") - (1 << 39)) + _fraction(int.from_bytes(data[5:], "big"), digits)


def read_time(data: bytes, digits: int) -> str:
    """Hours in 10 bits, minutes, seconds, then the fraction. The whole is one number, negative as a complement."""
    bits = 8 * (len(data) - 3)
    value = int.from_bytes(data, "big") - (0x800000 << bits)
    sign, value = ("-", -value) if value < 0 else ("", value)
    return sign + _time(value >> bits) + _fraction(value & ((1 << bits) - 1), digits)


def fraction_size(digits: int) -> int:
    """The bytes of a fraction of 0 to 6 digits."""
    if digits > 6:
        raise CorruptionError(f"a time with {digits} digits of a second")
    return (digits + 1) // 2


def packed_date(value: int) -> str:
    return packed_datetime(value)[:10]


def packed_datetime(value: int) -> str:
    """A DATETIME in JSON: the forty bits, and microseconds in 24."""
    return f"{_datetime(value >> 24)}.{value & 0xFFFFFF:06d}"


def packed_time(value: int) -> str:
    sign, value = ("-", -value) if value < 0 else ("", value)
    return f"{sign}{_time(value >> 24)}.{value & 0xFFFFFF:06d}"


def _datetime(value: int) -> str:
    months, day = divmod(value >> 17, 32)
    return f"{date_text(months // 13, months % 13, day)} {_time(value & 0x1FFFF)}"


def _time(value: int) -> str:
    return f"{value >> 12 & 0x3FF:02d}:{value >> 6 & 63:02d}:{value & 63:02d}"


def _fraction(value: int, digits: int) -> str:
    """Hundredths in one byte, 1/10,000 in two, microseconds in three; an odd number of digits leaves a 0 behind."""
    return f".{str(value).zfill(2 * fraction_size(digits))[:digits]}" if digits else ""

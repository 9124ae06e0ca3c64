"""Turn stored text into str, by the number of its collation.

Text that is not valid in its charset, or whose charset Python does not know (dec8, swe7, keybcs2, armscii8, geostd8),
is returned as the bytes that are stored: exact, though not readable. The numbers are those of
`information_schema.collations`. MariaDB's collations without padding are 1024 above the others; its UCA 14 collations
begin at 2048, 256 for each charset.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

BINARY = 63

_NUMBERS: dict[str, tuple[int | range, ...]] = {
    "big5": (1, 84),
    "hp_roman8": (6, 72),
    "koi8_r": (7, 74),
    "latin1": (5, 8, 15, 31, 47, 48, 49, 94),
    "iso8859_2": (2, 9, 21, 27, 77),
    "iso8859_8": (16, 71),
    "iso8859_7": (25, 70),
    "iso8859_9": (30, 78),
    "iso8859_13": (20, 41, 42, 79),
    "ascii": (11, 65),
    "euc_jp": (12, 91, 97, 98),
    "shift_jis": (13, 88),
    "cp932": (95, 96),
    "euc_kr": (19, 85),
    "gb2312": (24, 86),
    "gbk": (28, 87),
    "gb18030": (248, 249, 250),
    "tis_620": (18, 89),
    "koi8_u": (22, 75),
    "cp850": (4, 80),
    "cp852": (40, 81),
    "cp866": (36, 68),
    "cp1250": (26, 34, 44, 66, 99),
    "cp1251": (14, 23, 50, 51, 52),
    "cp1256": (57, 67),
    "cp1257": (29, 58, 59),
    "mac_latin2": (38, 43),
    "mac_roman": (39, 53),
    "utf_16_le": (56, 62),
    "utf_16_be": (35, 90, range(128, 152), 159, 54, 55, range(101, 125), range(640, 704)),  # ucs2 and utf16
    "utf_32_be": (60, 61, range(160, 184), range(736, 768)),
    "utf_8": (
        *(33, 76, 83, range(192, 216), 223, 45, 46, range(224, 248)),
        *(range(255, 576), range(576, 640)),
    ),
}
_CODECS = {
    number: codec
    for codec, numbers in _NUMBERS.items()
    for part in numbers
    for number in ([part] if isinstance(part, int) else part)
}
_UNLIKE: dict[tuple[int, ...], tuple[str, str]] = {
    (36, 68): ("№¤", "ⁿ²"),  # cp866
    (25, 70): ("‘’", "ʽʼ"),  # greek
    (16, 71): ("¯", "‾"),  # hebrew
    (22, 75): ("∙", "•"),  # koi8u
    (13, 88): ("＼", "\\"),  # sjis
    (12, 91): ("＼", "\\"),  # ujis
    (97, 98): ("〜‖−¢£¬", "～∥－￠￡￢"),  # eucjpms
}
"""Characters that Python's codec of a charset has, and what servers have there (seen with MariaDB 10.11 and MySQL 9.7)."""
_TABLES = {number: str.maketrans(*pair) for numbers, pair in _UNLIKE.items() for number in numbers}
_REPRS = {ord(ours): repr(theirs)[1:-1] for pair in _UNLIKE.values() for ours, theirs in zip(*pair, strict=True)}
_UCA_1400 = {0: "utf_8", 1: "utf_8", 2: "utf_16_be", 3: "utf_16_be", 4: "utf_32_be"}


def find_codec(collation: int) -> str | None:
    """Python's name of the charset, None where Python does not have it."""
    if collation >= 2048:
        return _UCA_1400.get((collation - 2048) >> 8)
    return _CODECS.get(collation - 1024 if collation >= 1024 else collation)


@cache
def text_decoder(collation: int) -> Callable[[bytes], str | bytes]:
    """The function that turns stored text of a collation into str, or leaves it as it is."""
    codec = find_codec(collation)
    if codec is None:
        return bytes
    if codec == "latin1":
        return _decode_latin1

    table = _TABLES.get(collation - 1024 if 1024 <= collation < 2048 else collation)

    def decode(data: bytes) -> str | bytes:
        try:
            text = data.decode(codec)
        except UnicodeDecodeError:
            return data
        return text.translate(table) if table else text

    return decode


_LATIN1 = {code: bytes([code]).decode("cp1252", "ignore") or chr(code) for code in range(0x80, 0xA0)}


def _decode_latin1(data: bytes) -> str:
    """The servers' latin1 is cp1252, with the five bytes that cp1252 leaves free as control characters."""
    text = data.decode("latin-1")
    return text if text.isascii() else text.translate(_LATIN1)


def describe_alike(value: object) -> str:
    """The `repr` of what is or holds text, with the servers' characters where it has those of Python's codecs: stores have
    the latter, too, from versions that did not tell them apart."""
    return repr(value).translate(_REPRS)

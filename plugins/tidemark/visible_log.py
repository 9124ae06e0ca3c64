"""A logger that escapes invisible characters in its arguments (`escape_invisible`)."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from tidemark.visible import escape_invisible


class VisibleLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that passes the arguments of its messages through `escape_invisible`. The format string stays as it is."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **named: Any) -> None:
        named.setdefault("stacklevel", 2)  # the caller's line, not this one
        super().log(
            level, msg, *(arg if isinstance(arg, int | float) else escape_invisible(str(arg)) for arg in args), **named
        )

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs

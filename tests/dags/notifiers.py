"""Whom the settings of tests name in `notify`: one that remembers what it is given, one that fails."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.sdk import BaseNotifier


class Remember(BaseNotifier):
    """A notifier as providers write them: its text is a template."""

    template_fields = ("text",)
    said: ClassVar[list[str]] = []

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        self.said.append(self.text)


def break_down(context: Any) -> None:
    raise RuntimeError(f"no mail server for {context['tidemark']['subject']}")

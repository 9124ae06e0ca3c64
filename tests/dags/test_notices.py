"""What is said when a task fails: the log ends with the sentence and the next command, and notifiers are called."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dags.conftest import Centre
from tests.dags.notifiers import Remember
from tidemark import installation
from tidemark.errors import PermanentError, UnreachableError, UsageError
from tidemark.orchestration.dags.docs import LOAD_DOC, spell_doc
from tidemark.orchestration.dags.link import check_dags
from tidemark.orchestration.dags.notices import describe_failure, make_callbacks
from tidemark.orchestration.retry_policy import format_advice
from tidemark.orchestration.tasks.perform import format_values
from tidemark.settings.load import load_settings
from tidemark.settings.model import AirflowSettings

HERE = "tests.dags.notifiers"
SENTENCE = "the disk {{ 7 * 7 }} is full. Next: ./tidemark doctor"
SUBJECT = "tidemark_sync__plant1.recover failed"


@pytest.mark.full
@pytest.mark.usefixtures("airflow_database")
def test_a_red_task_ends_with_the_sentence_and_calls_whom_the_settings_name(
    centre: Centre,
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> str:
        try:
            raise ConnectionRefusedError("behind it")
        except ConnectionRefusedError as cause:
            raise PermanentError("the disk {{ 7 * 7 }} is full", hint="./tidemark doctor") from cause

    monkeypatch.setattr("tidemark.sync.run.open_run", fail)
    text = "{{ tidemark.subject }} | {{ tidemark.message }}"
    centre.write(
        f'[airflow]\nnotify = [{{call = "{HERE}.break_down"}}, {{call = "{HERE}.Remember", text = "{text}"}},'
        f' {{call = "{HERE}.Remember", on = "retry", text = "not this one"}}]'
    )
    Remember.said.clear()
    states = run("tidemark_sync__plant1")
    assert (states["run"], states["recover"]) == (["failed"], ["failed"]), "a notifier that fails changes nothing"
    assert Remember.said == [f"{SUBJECT} | {SUBJECT}: {SENTENCE}"], "once, and what an error says is no template"
    said = [record for record in caplog.records if record.name == "tidemark.orchestration.dags.notices"]
    assert [record.getMessage() for record in said][-1] == SENTENCE
    assert f"{HERE}.break_down notified nobody: RuntimeError: no mail server for {SUBJECT}" in said[0].getMessage()
    stacks = [record.exc_info[1] for record in caplog.records if record.exc_info and record.levelname == "ERROR"]
    assert not [error for error in stacks if error and error.__cause__], "the log shows no error behind the sentence"


def test_a_retry_calls_its_own_and_the_log_ends_with_the_sentence(caplog: pytest.LogCaptureFixture) -> None:
    table = (("call", f"{HERE}.Remember"), ("on", "retry"), ("text", "{{ tidemark.cause }}"))
    callbacks = make_callbacks(AirflowSettings(notify=(table,)))
    assert [len(callbacks[f"on_{event}_callback"]) for event in ("failure", "retry")] == [1, 2]
    instance = type("TI", (), {"dag_id": "d", "task_id": "t", "rendered_map_index": "centre"})()
    context = {"ti": instance, "exception": UnreachableError("no route\x1b[2J", hint="./tidemark doctor"), "dag": None}
    Remember.said.clear()
    for callback in callbacks["on_retry_callback"]:
        callback(context)
    assert Remember.said == ["no route\\x1b[2J"]
    assert caplog.messages[-1] == "no route\\x1b[2J. Next: ./tidemark doctor"
    killed = describe_failure({"ti": instance})
    assert killed["message"] == "d.t [centre] failed: its process was killed. Next: ./tidemark status"


def test_an_installed_wheel_names_its_command_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "IS_INSTALLED", True)
    monkeypatch.setenv("TIDEMARK_CONFIG", "/etc/tidemark.toml")
    error = UnreachableError("no route", hint="./tidemark doctor")
    context = {"ti": type("TI", (), {"dag_id": "d", "task_id": "t"})(), "exception": error}
    assert describe_failure(context)["next"] == "tidemark --config /etc/tidemark.toml doctor"
    assert format_advice(error) == "no route. Next: tidemark --config /etc/tidemark.toml doctor"
    assert "`tidemark --config /etc/tidemark.toml why SUBJECT`" in spell_doc(LOAD_DOC)


def test_a_notifier_that_is_not_there_is_an_import_error_with_its_key(centre: Centre) -> None:
    centre.write('[airflow]\nnotify = [{call = "no.such.Notifier"}]')
    with pytest.raises(UsageError, match=r"airflow\.notify: no\.such\.Notifier: No module named 'no'"):
        check_dags(load_settings(centre.config, {}))


def test_values_are_words() -> None:
    values = {"ok": True, "error": "", "path": "a/b", "loaded": 1200, "held": [], "kept": [1, 2], "sent_bytes": 1_200_000}
    assert format_values(values) == "path a/b, 1,200 loaded, 2 kept, sent 1.2 MB"
    assert format_values({"bytes": 10, "bytes_per_second": 2000, "duration_seconds": 90}) == "10 B, 2.0 kB/s, 1:30"

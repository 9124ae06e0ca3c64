"""The answers of `--json` are what docs/schemas says: no key went away, none has another type."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema
import pytest

from docs.make import json_schemas
from tidemark.cli.main import VERBS

PAGE = json_schemas.ROOT / "docs" / "json.md"


def read_schema(verb: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((json_schemas.FOLDER / f"{verb}.json").read_text(encoding="utf-8"))
    return schema


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[dict[str, Any]]]:
    return json_schemas.play(tmp_path_factory.mktemp("played"))


def test_every_verb_has_a_schema_and_a_row() -> None:
    schemas = {path.stem for path in json_schemas.FOLDER.glob("*.json")}
    assert set(VERBS) == {name for name in schemas if not name.startswith("changes-")}
    assert all(f"(schemas/{name}.json)" in PAGE.read_text(encoding="utf-8") for name in schemas)


def test_a_key_that_goes_or_changes_is_noticed() -> None:
    schema = json_schemas.schema_of("x", [{"ok": True, "rows": [{"a": 1, "b": ""}]}])
    jsonschema.validate({"ok": True, "rows": [{"a": 2, "b": "", "new": 1}], "more": 1}, schema)
    for wrong in ([{"a": 1}], [{"a": "1", "b": ""}], {}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"ok": True, "rows": wrong}, schema)


def list_numbers(schema: dict[str, Any], key: str = "") -> Iterator[str]:
    """Yield the keys of all numbers that are not whole, at any depth."""
    if "number" in (schema.get("type") or ()):
        yield key
    for name, one in schema.get("properties", {}).items():
        yield from list_numbers(one, name)
    yield from list_numbers(schema["items"], key) if "items" in schema else ()


def test_times_are_no_numbers_and_durations_say_their_unit() -> None:
    found = {key for path in json_schemas.FOLDER.glob("*.json") for key in list_numbers(read_schema(path.stem))}
    assert "duration_seconds" in found and "lag_seconds" in found
    assert {key for key in found if not key.endswith("seconds")} == {"share", "files_per_second", "ms"}


@pytest.mark.full
def test_answers_meet_their_schemas(answers: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    for verb, several in answers.items():
        for answer in several:
            jsonschema.validate(answer, read_schema(verb))


@pytest.mark.full
def test_every_key_of_a_schema_is_in_an_answer(answers: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    for verb, several in answers.items():
        found = {key for answer in several for key in answer} | json_schemas.FAILURE.keys()
        assert set(read_schema(verb)["properties"]) <= found, verb


@pytest.mark.full
def test_status_was_asked_of_a_source_and_a_sink_at_every_stage(answers: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    told = [(answer["sources"][0], answer["sinks"][0]) for answer in answers["status"] if "sinks" in answer]
    assert [(source["state"], sink["state"]) for source, sink in told] == [
        ("new", "new"),
        ("idle", "new"),
        ("idle", "current"),
    ]
    assert [sink["behind_transactions"] > 0 for _, sink in told] == [False, True, False]
    for key, wrong in (("batch", "1"), ("failed", None), ("behind_seconds", "soon")):
        sink = {**told[-1][1], key: wrong}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**answers["status"][-1], "sinks": [sink]}, read_schema("status"))

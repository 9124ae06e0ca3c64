"""docs/schemas: a JSON schema of what each verb answers with `--json`, from answers of a small deployment.

    python -m docs.make.json_schemas

Each command of `PLAY` and of `CHANGES_PLAY` is run in this process. A schema says which keys an answer has and of which
types they are. A key that some answers of a verb lack is not required. Keys that are names of data (`MAPS`) are not listed.
Each action of `changes` answers with other keys, so each has a schema of its own, `changes-ACTION.json`.
"""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemark.cli.main import VERBS, main

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "schemas"
SITE = ROOT / "tests" / "data" / "iotdb" / "2.0.1-beta" / "data"
FILE = "data/sequence/root.plant1/0/2818/1795252019249-1-0-0.tsfile"
DEVICE = "root.plant1.line1.d1"
CHANGES = "changes"
FAILURE = {"ok": "boolean", "kind": "integer", "error": "string", "hint": "string", "subject": "string"}
MAPS = frozenset(("reasons", "undecodable", "waiting", "by_reason"))  # their keys are names of data
PLAY = (
    "version",
    "help --man",
    "completion bash",
    "completion suggest -- sy",
    "doctor",
    "plan plant1",
    "status",
    "runs",
    "sync plant1",
    "sync plant1",
    "sync --all",
    "sync nobody",
    "plan plant1",
    "load",
    "load --receiver nobody",
    "merge",
    "merge",
    "verify",
    "verify --deep",
    "coverage",
    "status",
    "runs",
    "runs plant1",
    "why plant1",
    f"why {DEVICE}",
    f"why {FILE}",
    "why nobody",
    "read --out points.csv",
    "read --tall --out tall.jsonl",
    "owners list",
    f"owners transfer {DEVICE} --to plant1 --yes",
    "quarantine list",
    "quarantine release 7",
    "approve nothing --yes",
    "ledger backup",
    "ledger upgrade",
    "adopt plant1 nowhere",
    "down",
)
CLUSTER = """
[cluster]
replicas = 2
quorum = 1
slots = 12
""" + "".join(f'\n[nodes.{name}]\nstore = "nodes/{name}"\n' for name in ("n1", "n2", "n3"))
SPREAD = ("cluster init", "cluster show", "cluster check", "replica show", "replica verify", "replica show", "replica watch")
LOG = ROOT / "tests" / "data" / "binlogs" / "variants" / "plain.binlog.xz"
SOURCE = """
[sources.orders]
store = "changes"

[sinks.past]
source = "orders"
kind = "history"
target = "past"
"""
CHANGES_PLAY = (
    "status",
    "changes capture orders --files plain.000001",
    "status",
    "changes deliver past",
    "status",
    "changes capture orders --files plain.000001",
    "changes find orders latest",
    "changes find orders seq:1000000",
    "changes read orders --out changes.jsonl",
    "changes consume billing --source orders --shards 2 --start earliest --out billing",
    "changes rewind billing --to earliest",
    "changes rewind billing --to earliest --yes",
    "changes reshard billing --shards 3 --yes",
    "changes retain orders",
    "changes show",
    "changes show orders",
)
"""With a source, which is captured from a log file, and a sink of it. Both are new; the sink is behind, then not."""


def play(folder: Path) -> Mapping[str, Sequence[dict[str, Any]]]:
    """The answers of each verb, in a deployment that is made in `folder`."""
    shutil.copytree(SITE, folder / "site")
    words = ["init", str(folder), "--site", f"plant1={folder / 'site' / 'datanode'}"]
    asked = [_ask(folder, command) for command in (words, *(line.split() for line in PLAY))]
    (folder / "plain.000001").write_bytes(lzma.decompress(LOG.read_bytes()))
    for more, lines in ((SOURCE, CHANGES_PLAY), (CLUSTER, SPREAD)):
        with (folder / "tidemark.toml").open("a", encoding="utf-8") as settings:
            settings.write(more)
        asked += [_ask(folder, line.split()) for line in lines]
    answers: dict[str, list[dict[str, Any]]] = {}
    for name, answer in asked:
        if name.startswith(CHANGES) and not answer["ok"]:
            raise RuntimeError(f"what the next answers tell of did not come about: {answer}")
        answers.setdefault(name, []).append(answer)
    return answers


def _ask(folder: Path, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The name of the schema of a command, and the object that it answers with."""
    out = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main(["--config", str(folder / "tidemark.toml"), "--json", *words])
    answer: dict[str, Any] = json.loads(out.getvalue().splitlines()[-1])
    return ("-".join(words[:2]) if words[0] == CHANGES else words[0]), answer


def schema_of(verb: str, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The schema of a verb's answers: every key that one of them has; only `ok` is required."""
    whole = _infer(answers or [{"ok": True}])
    whole["properties"] |= {key: {"type": kind} for key, kind in FAILURE.items() if key not in whole["properties"]}
    whole["properties"] = dict(sorted(whole["properties"].items()))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"tidemark {verb.replace('-', ' ')} --json"}
    return head | whole | {"required": ["ok"]}


def _infer(values: Iterable[Any], key: str = "") -> dict[str, Any]:
    """A schema that all values meet."""
    values = list(values)
    kinds = sorted({_kind(value) for value in values})
    if "integer" in kinds and "number" in kinds:
        kinds.remove("integer")
    found: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds} if kinds else {}
    objects = [value for value in values if isinstance(value, dict)]
    lists = [value for value in values if isinstance(value, list)]
    if objects and key not in MAPS:
        names = sorted({name for value in objects for name in value})
        found["properties"] = {name: _infer([o[name] for o in objects if name in o], name) for name in names}
        found["required"] = [name for name in names if all(name in value for value in objects)]
    if any(lists):
        found["items"] = _infer([one for several in lists for one in several])
    return found


def _kind(value: object) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds[type(value)] if value is not None else "null"


def write_schemas() -> None:
    with tempfile.TemporaryDirectory() as folder:
        answers = play(Path(folder))
    FOLDER.mkdir(exist_ok=True)
    for name in sorted({*VERBS, *answers}):
        text = json.dumps(schema_of(name, answers.get(name, [])), indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_schemas()
    sys.stderr.write(f"written into {FOLDER}\n")

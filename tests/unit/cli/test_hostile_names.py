"""Names that an edge made reach people with nothing in them that a terminal obeys, whichever verb prints them."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import logging
import traceback
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.landing_maker import SITE_A, SITE_B, Sender
from tests.small_files import sealed
from tidemark.cli.main import main
from tidemark.errors import CorruptionError
from tidemark.visible import escape_invisible, plain_json
from tidemark.visible_log import VisibleLog

CODE = Path(__file__).resolve().parents[3] / "plugins" / "tidemark"
NASTY = "\x1b]0;owned\x07\x1b[2J\u202e\u200b\x9b\x7f\r"  # title, clear, turn round, nothing, C1, DEL, return
DEVICE = f"root.sg.`d{NASTY}\nforged`"
VERBS = (
    ("load",),
    ("status",),
    ("coverage",),
    ("verify",),
    ("why", "root.sg.ordinary"),
    ("why", DEVICE),
    ("why", f"no such thing {NASTY}"),
    ("owners", "list"),
    ("quarantine", "list"),
    ("plan", "plant1"),
    ("sync", "plant1"),
    ("merge",),
    ("read", "--tall", "--out", "{folder}/out.csv"),
    ("read", "--out", "{folder}/out.parquet", "--site", f"plant{NASTY}"),
    ("doctor",),
    ("coverage", "--html", "{folder}/coverage.html"),
    ("owners", "transfer", DEVICE, "--to", "plant1", "--yes"),
    ("ledger", "rebuild", "--replace", "--yes"),
)


def raw(text: str) -> set[str]:
    """What of a text is not to be there: all that people cannot see, but ends of lines."""
    return {letter for letter in text if escape_invisible(letter) != letter and letter != "\n"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """Three sites: one of ours with a hostile file, one whose papers are hostile, one that is refused and quarantined."""
    world = Commanded(tmp_path, monkeypatch)
    world.seal(1, device=DEVICE)
    odd = world.site / "data" / "sequence" / "root.sg" / "0" / "0" / f"{NASTY}.tsfile"
    odd.write_bytes(b"TsFile")
    assert world.sync().code in (0, 23)
    hostile = Sender(world.root, SITE_A, name=f"plant{NASTY}\nforged: all is well")
    place = f"data/sequence/root.{NASTY}/0/0/1-1-0-0.tsfile"
    hostile.land({place: sealed({f"root.sg.`other{NASTY}`": {"s": [(1, 1)]}})})
    hostile.land({"data/sequence/root.sg/0/0/2-2-0-0.tsfile": sealed({DEVICE: {"s": [(1, 1)]}})})
    hostile.land({place.replace("1-1-", "3-3-"): {**sealed({"root.sg.d9": {"s": [(1, 1)]}}), "": b"no TsFile"}})
    other = Sender(world.root, SITE_B, name="plant3")
    other.land({}, change={"previous": f"20260101T000000-{NASTY}-1", "sequence": 7})
    for name in (f"landing/{SITE_B}/20260101T000000-{NASTY}-1", f"landing/{NASTY}/x"):
        (world.root / name).mkdir(parents=True)
        (world.root / name / "manifest.json").write_text("{" + NASTY)
    return world


def said_by(world: Commanded, *words: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        main(["--config", str(world.folder / "tidemark.toml"), *(w.replace("{folder}", str(world.folder)) for w in words)])
    return out.getvalue(), err.getvalue()


@pytest.mark.full
def test_no_verb_prints_what_nobody_sees(world: Commanded) -> None:
    everything = ""
    for words in VERBS:
        out, err = said_by(world, *words)
        assert not raw(out + err), words
        assert "unexpected" not in err, (words, err)
        assert not [line for line in (out + err).splitlines() if line.startswith("forged")], words
        everything += out + err
        out, err = said_by(world, *words, "--json")
        assert not raw(out + err), words
        json.loads(out.splitlines()[-1])
    for shown in (r"\x1b]0;owned\x07", r"\u202e", r"\x9b", r"\u200b", r"\r", r"\nforged"):
        assert shown in everything
    page = (world.folder / "coverage.html").read_text(encoding="utf-8")
    assert not raw(page)
    assert r"\x1b]0;owned" in page


def test_json_stays_exact(world: Commanded) -> None:
    said_by(world, "load")
    out, _ = said_by(world, "owners", "list", "--json")
    assert DEVICE in {row["device"] for row in json.loads(out)["owners"]}
    assert json.loads(plain_json(json.dumps([NASTY, "\U000e0041"], ensure_ascii=False))) == [NASTY, "\U000e0041"]


def test_what_people_write_stays_as_it_is() -> None:
    for text in ("Zürich 温度 — température", "a\u00a0b\u3000c", "│ ▒ ▏ → …", "e\u0301", "🌊", "", r"\x1b is told as it is"):
        assert escape_invisible(text) == text
    assert escape_invisible("a\tb\nc\u2028d\U000e0041\ud800") == r"a\tb\nc\u2028d\U000e0041\ud800"


def test_tasks_log_it_too(caplog: pytest.LogCaptureFixture) -> None:
    log = VisibleLog("tidemark.test")
    with caplog.at_level(logging.INFO):
        log.info("%s is %d of\n%.1f", NASTY, 1, 2.5)
        log.error("held back: %s", {"path": NASTY})
    assert not raw(caplog.text)
    assert caplog.records[0].filename == Path(__file__).name
    assert caplog.records[0].getMessage() == f"{escape_invisible(NASTY)} is 1 of\n2.5"


class Stubborn(Exception):
    """Says its file's name whatever its `args` are."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def __str__(self) -> str:
        return f"no {self.place}"


def hostile_errors() -> list[BaseException]:
    noted = ValueError("noted")
    noted.add_note(NASTY)
    return [
        OSError(5, f"refused {NASTY}", NASTY, None, f"to {NASTY}"),
        ConnectionResetError(NASTY),
        ImportError(f"no module {NASTY}", name=NASTY),
        UnicodeDecodeError("utf-8", b"x", 0, 1, NASTY),
        KeyError(NASTY),
        Stubborn(NASTY),
        noted,
        ExceptionGroup("several", [ValueError(NASTY)]),
        CorruptionError(f"torn {NASTY}", hint=f"see {NASTY}"),
    ]


@pytest.mark.full_after(2)
@pytest.mark.real("airflow")
@pytest.mark.parametrize("error", hostile_errors(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("behind", ["itself", "cause", "context"])
def test_a_task_s_traceback_shows_it_too(
    world: Commanded, monkeypatch: pytest.MonkeyPatch, error: BaseException, behind: str
) -> None:
    from tidemark.orchestration.tasks.perform import perform_step

    monkeypatch.setenv("TIDEMARK_CONFIG", str(world.folder / "tidemark.toml"))

    def act(_app: object) -> None:
        if behind == "itself":
            raise error
        try:
            raise error
        except BaseException as first:
            if behind == "cause":
                raise RuntimeError("in front") from first
            raise RuntimeError("in front")  # noqa: B904

    with pytest.raises(BaseException) as raised:
        perform_step(act)
    told = "".join(traceback.format_exception(raised.value))
    assert not raw(told)
    assert r"\x1b]0;owned" in told
    assert type(raised.value) is (type(error) if behind == "itself" else RuntimeError)


# who writes to a stream: the door, a bar and a last resort that go through `escape_invisible`, pipes between programs
PRINTERS = {
    "cli/screen.py",
    "cli/progress.py",
    "cli/main.py",  # help, which is ours
    "cli/log.py",  # lines of a log, escaped
    "cli/failure.py",  # a traceback, escaped, where no file could be written
    "cli/__main__.py",  # opens what is closed
    "stores/agent/server.py",
    "stores/agent/forward.py",
    "stores/agent/publisher.py",
    "orchestration/deployment/part_starter.py",
    "cli/verbs/checkout.py",
    "engines/worker.py",
}
ESCAPERS = {"proof/page_style.py"}
LOGGERS = {  # whose messages name nothing of an edge's
    "visible_log.py",
    "cli/log.py",
    "orchestration/settings.py",
    "orchestration/dags/link.py",
    "orchestration/deployment/warm_start.py",
    "stores/ssh/connection.py",
}


@pytest.mark.full_after(1)
@pytest.mark.parametrize("path", sorted(CODE.rglob("*.py")), ids=lambda path: str(path.relative_to(CODE)))
def test_nobody_goes_around_the_door(path: Path) -> None:
    name, text = path.relative_to(CODE).as_posix(), path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    if name not in PRINTERS:
        assert "print" not in calls
        assert not used & {"sys.stdout", "sys.stderr"}
        assert "Console" not in calls
    if name not in ESCAPERS:
        assert "from html import" not in text
        assert "html.escape" not in used
    if name not in LOGGERS:
        assert "logging.getLogger" not in calls

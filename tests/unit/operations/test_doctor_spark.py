"""`doctor` tries the master of Spark and names the cause."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services.processes import free_port
from tidemark.operations.doctor import spark
from tidemark.operations.doctor.doctor import doctor
from tidemark.operations.doctor.stores import Check


def examine(place: Path, master: str, engine: str = "auto", **environ: str) -> list[Check]:
    text = f'[receivers.centre]\nstore = "centre"\n[spark]\nmaster = "{master}"\nengine = "{engine}"\n'
    (place / "tidemark.toml").write_text(text)
    report = doctor(str(place / "tidemark.toml"), environ)
    return [check for check in report.checks if check.name == "spark"]


@contextmanager
def answering(answer: bytes | None) -> Iterator[int]:
    """A server that answers the first bytes it gets, or never; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                while answer is None and line.recv(100):
                    continue
                if answer is not None:
                    line.recv(100)
                    line.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)


FAILURE = (9 + 4 + 2).to_bytes(8, "big") + b"\x08\0\0\0\x02no"  # as a master says that it has no such stream


def test_a_master_answers_and_another_one_is_away(tmp_path: Path) -> None:
    away = free_port()
    with answering(FAILURE) as port:
        (check,) = examine(tmp_path, f"spark://127.0.0.1:{away},127.0.0.1:{port}")
    assert (
        check.ok and f"answers at 127.0.0.1:{port}" in check.detail and f"127.0.0.1:{away}: nothing listens" in check.detail
    )


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", 6, "something else than a master"),
        (b"", 6, "something else"),
        (None, 5, "says nothing"),
    ],
)
def test_what_listens_is_no_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | None, kind: int, words: str
) -> None:
    monkeypatch.setattr(spark, "SECONDS", 1.0)
    with answering(answer) as port:
        (check,) = examine(tmp_path, f"spark://127.0.0.1:{port}")
    assert (check.ok, check.kind) == (False, kind) and words in check.detail and "[spark] master" in check.hint


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("master", "words"),
    [
        ("spark://127.0.0.1:FREE", "nothing listens there"),
        ("spark://no-such-host.invalid:7077", "no such host"),
        ("k8s://https://127.0.0.1:FREE", "nothing listens there"),
        ("yarn", "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"),
        ("spark://host:port", "port"),
    ],
)
def test_the_cause_is_named(tmp_path: Path, master: str, words: str) -> None:
    (check,) = examine(tmp_path, master.replace("FREE", str(free_port())))
    assert not check.ok and words in check.detail


def test_nothing_is_tried_where_spark_is_here_or_not_used(tmp_path: Path) -> None:
    assert examine(tmp_path, "local[4]") == examine(tmp_path, "spark://127.0.0.1:1", engine="pool") == []
    assert examine(tmp_path, "yarn", YARN_CONF_DIR=str(tmp_path))[0].ok

"""Which Java Spark gets (DESIGN §7)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tidemark.engines import java
from tidemark.errors import UsageError


def fake_java(home: Path, version: str) -> Path:
    """A home whose `java` tells `version` and prints the words it is given."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit; fi\nprintf \'%s|\' "$@"\n'
    )
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any Java, unless a test puts one there."""
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25), ("21-ea", 21)])
def test_versions_old_and_new(tmp_path: Path, version: str, major: int) -> None:
    assert java.java_version(fake_java(tmp_path / "jdk", version)) == major


def test_java_home_goes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_one, on_path = fake_java(tmp_path / "set", "17.0.1"), fake_java(tmp_path / "found", "21.0.1")
    (tmp_path / "path" / "java").symlink_to(on_path / "bin" / "java")
    assert java.java_home() == on_path
    monkeypatch.setenv("JAVA_HOME", str(set_one))
    assert java.java_home() == set_one


def test_one_that_is_too_old_is_passed_over_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(UsageError) as caught:
        java.java_home()
    assert f"{tmp_path / 'old'} (version 11)" in caught.value.message
    assert "openjdk-17" in caught.value.hint


def test_the_front_leaves_out_the_one_option_and_keeps_all_else(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a home", "21.0.8")
    (home / "lib").mkdir()
    (home / "release").write_text("x")
    front = java.make_java_front(home, tmp_path / "front")
    assert java.make_java_front(home, tmp_path / "front") == front, "made once, found again"
    words = ["-cp", "a b:*", java.ABSENT, "", "--add-modules=other", "Main class"]
    done = subprocess.run(
        [front / "bin" / "java", *words], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.stdout == "-cp|a b:*||--add-modules=other|Main class|"
    assert (front / "lib").resolve() == home / "lib"
    assert java.java_version(front) == 21

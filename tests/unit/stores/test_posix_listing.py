"""What the tools of a far end say on their standard error while they list: whom it is about, and whom it is not."""

from __future__ import annotations

import pytest

from tidemark.stores.posix.shell import FindOutput

FOLDERS = ["data/sequence", "data/unsequence"]
SAID = {
    "find: '/site/data/a': Permission denied": {"data/a": "Permission denied"},
    "find: /site/data/a: Permission denied": {"data/a": "Permission denied"},  # busybox, BSD
    "find: '/site/data/a': Input/output error": {"data/a": "Input/output error"},
    "find: '/site/data/it''s: odd': Stale file handle": {"data/it''s: odd": "Stale file handle"},
    "stat: cannot statx '/site/data/f.tsfile': Input/output error": {"data/f.tsfile": "Input/output error"},
    "stat: cannot stat '/site/data/f.tsfile': Permission denied": {"data/f.tsfile": "Permission denied"},
    "stat: can't stat '/site/data/f.tsfile': I/O error": {"data/f.tsfile": "I/O error"},
    "find: '/site/data/a': No such file or directory": {},  # it went away while it was looked for
    "stat: can't stat '/site/data/f.tsfile': No such file or directory": {},
    "find: WARNING: Hard link count is wrong for '/site/data'": {},
    "find: warning: '/site/data/x' is odd": {},
    "sh: warning: setlocale: LC_ALL: cannot change locale": {},
}


@pytest.mark.parametrize("line", SAID)
def test_a_line_of_a_tool_is_about_what_it_names(line: str) -> None:
    output = FindOutput("/site/")
    output.note_errors(b"a login script says this\n" + line.encode() + b"\n", FOLDERS)
    assert output.odd == {path: f"cannot be listed: {why}" for path, why in SAID[line].items()}


def test_trouble_that_names_no_path_may_be_anywhere() -> None:
    output = FindOutput("/site/")
    output.note_errors(b"find: fts_read: Cannot allocate memory\n", FOLDERS)
    assert output.odd == dict.fromkeys(FOLDERS, "cannot be listed: find: fts_read: Cannot allocate memory")

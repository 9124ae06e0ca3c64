"""docs/verbs: the help of each verb, and what it prints on a small real deployment.

    python -m docs.make.verb_pages          writes both into the pages (some minutes: it starts an Airflow)
    python -m docs.make.verb_pages begin transfer      the outputs of these plays of the story alone
    python -m docs.make.verb_pages --help-only

A page has places between `<!-- help -->` or `<!-- shown: NAME -->` and `<!-- end -->`; what stands around them is written
by hand. `SHOWN` in `docs.make.verb_story` says what is run for each NAME.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tidemark.cli.main import GROUPS, parse_words

PAGES = Path(__file__).resolve().parents[1] / "verbs"
PLACE = re.compile(r"(<!-- (help|shown: [\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
CHOICE = re.compile(r"^    ([a-z-]+) +\S", re.MULTILINE)
INDEX_HEAD = """\
# Verbs

`./tidemark [--config FILE] VERB … [--json] [--quiet] [--yes] [-v] [--log-file F] [--log-json]`. Each page shows what a verb
is for, what it prints, and its options.

- Words for people and progress go to stderr, results to stdout. `--json` makes the last line of stdout one JSON object,
  also after a failure: `{"ok": false, "kind": …, "error": …, "hint": …}`. Later versions may add keys; they take none
  away ([schemas and promise](../json.md)).
- `--log-file F` appends a log of the command to a file that you can send along: what each step did, tries that failed, the
  traceback of an error, how long it took. `-v` shows it on stderr. With `--log-json` a line is a JSON object: `time`,
  `level`, `from`, `message`, at times `thread` and `traceback`. Passwords do not get into it. `test` hands `-v` to pytest.
- Hints name commands as you called this one, with your `--config` and `--receiver`: each can be pasted as it is.
- A verb that destroys or decides asks first, and says what it would do in numbers. Off a terminal it needs `--yes`.
- With several receivers `coverage`, `verify`, `load`, `merge`, `quarantine list` and `owners list` run for each, and
  `--json` has an object for each in `receivers`. `--receiver R` chooses one. The other verbs need it.
- The outputs on these pages come from a small deployment: the folders in `tests/data/iotdb`, below `/srv/tidemark`.
"""
INDEX_TAIL = """\
## Exit codes

| code | means |
|---|---|
| 0 | done |
| 1 | a fault in Tidemark; the message names a file with the whole story |
| 2 | wrong usage or settings |
| 3 | not found |
| 5 | try again: the network, a busy lease, a full queue |
| 6 | somebody has to change something: a full disk, a refused login, a host key |
| 7 | something is damaged |
| 9 | nothing to do (only with `--fail-if-nothing`) |
| 10 | the link's window is over; the next run goes on |
| 20 | differences were found |
| 21 | a device belongs to another site |
| 22 | drops wait for approval |
| 23 | partial: the rest was done |
| 24 | the source vanished |
| 30 | no quorum of data nodes |
| 129, 130, 143 | stopped by a hangup, Ctrl-C, SIGTERM; the next run goes on from there |
| 141 | nobody reads the result any more |
"""


def index() -> str:
    parts = [INDEX_HEAD]
    for group, verbs in GROUPS:
        rows = [f"| [{verb.name}]({verb.name}.md) | {verb.summary} |" for verb in verbs]
        parts.append("\n".join([f"## {group[0].upper()}{group[1:]}", "", "| verb | |", "|---|---|", *rows]) + "\n")
    return "\n".join([*parts, INDEX_TAIL])


def help_of(verb: str) -> str:
    """The verb's help, and that of each of its actions."""
    first = _help(verb)
    actions = CHOICE.findall(first.split("positional arguments:\n")[1]) if "..." in first.split("\n\n")[0] else []
    if verb == "cluster":
        actions += [f"plan {action}" for action in CHOICE.findall(_help("cluster plan").split("positional arguments:\n")[1])]
    texts = [first, *(_help(f"{verb} {action}") for action in actions)]
    return "\n".join(f"```text\n{text.rstrip()}\n```\n" for text in texts)


def _help(words: str) -> str:
    before, said = os.environ.get("COLUMNS"), io.StringIO()
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            parse_words([*words.split(), "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return said.getvalue()


def filled(text: str, wanted: Callable[[str], str | None]) -> str:
    """The page with its places filled; those of which `wanted` knows nothing stay as they are."""

    def fill(place: re.Match[str]) -> str:
        inside = wanted(place[2])
        return place[0] if inside is None else f"{place[1]}{inside}{place[3]}"

    return PLACE.sub(fill, text)


def write(shown: Mapping[str, str]) -> None:
    (PAGES / "index.md").write_text(index(), encoding="utf-8")
    for page in [page for page in sorted(PAGES.glob("*.md")) if page.stem != "index"]:
        verb = page.stem

        def wanted(place: str, verb: str = verb) -> str | None:
            return help_of(verb) if place == "help" else shown.get(place.removeprefix("shown: "))

        page.write_text(filled(page.read_text(encoding="utf-8"), wanted), encoding="utf-8")


def main() -> None:
    if "--help-only" in sys.argv:
        write({})
        return
    from docs.make.verb_story import tell

    write(tell(*sys.argv[1:]))


if __name__ == "__main__":
    main()

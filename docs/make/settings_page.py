"""docs/settings.md, made from the declarations in `tidemark.settings.model`.

python -m docs.make.settings_page       writes the page
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tidemark.settings.model import NAMED, REQUIRED, SECTIONS, Setting, list_settings
from tidemark.settings.values import Reader, format_read

PAGE = Path(__file__).resolve().parents[1] / "settings.md"
HEAD = """\
# Settings

<!-- made by docs/make/settings_page.py: change the code, then run it -->

`tidemark.toml` holds all settings. `./tidemark init` writes one with comments. `./tidemark doctor` checks it.

- `--config FILE` names the file; else `$TIDEMARK_CONFIG`, else `tidemark.toml` in the folder you stand in.
- Relative paths are below the folder of the file, also those in files that it includes.
- Every key can be given as `TIDEMARK__SECTION__KEY`, for example `TIDEMARK__SITES__PLANT1__STORE`. The environment wins.
- An unknown key is an error. It names the line and the nearest key.
- Passwords and private keys stand in files of their own, or in [Airflow connections](logins.md). The settings name them.
"""
MANY = """\
## Many sites

```toml
include = ["sites/*.toml"]          # at the top of tidemark.toml

[receivers.centre]
store = "/srv/tidemark"

[defaults.site]                     # what a site has unless its own table says otherwise
key = "keys/edge"
data = ["data/datanode/data"]

[defaults.link]
window = "22:00-06:00"

[links."north-*"]                   # a link for each site of such a name
schedule = "*/15 * * * *"
```

Then `sites/north-1.toml` has what is the site's own:

```toml
[sites.north-1]
id = "0f8e1c5e-6d0b-4c8e-9a57-2f6f3a1c7e01"
store = "sftp://edge@10.0.0.5:22/data/iotdb"
host_key = "SHA256:…"
```

- `include` is a list of files and of patterns: `*`, `?`, and `**` for any folders. An included file may hold any section,
  and include others. A file counts once, and a table stands in one file. A pattern that matches no file is an error.
- `[defaults.site]` and `[defaults.link]` take the keys of `[sites.NAME]` and `[links.NAME]`, but not those that must be
  given there. A key has the value of its own table, else of the pattern, else of the defaults, else the default below.
- `[links."PATTERN"]` makes a link for each site whose name it matches (`*`: any letters, `?`: one). The link has the site's
  name. A site with a `[links.NAME]` of its name keeps that one. Two patterns that match one site are an error.
- Airflow has a DAG for each link, those of patterns and included files too. `./tidemark sync --all` and
  `./tidemark sync 'north-*'` run several links from the command line.
"""


def page() -> str:
    return "\n".join([HEAD, MANY, *("\n".join(_section_lines(section)) + "\n" for section in SECTIONS)])


def _section_lines(section: str) -> Iterator[str]:
    title = f"{section}.NAME" if section in NAMED else section
    yield f"## `[{title}]`\n\n{SECTIONS[section].__doc__}\n"
    yield "| key | default | meaning | allowed |\n|---|---|---|---|"
    for key, setting in list_settings(section).items():
        cells = (f"`{key}`", _describe_default(setting), setting.meaning, describe_limits(setting.read))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _describe_default(setting: Setting) -> str:
    return "must be given" if setting.default is REQUIRED else f"`{format_read(setting.default, setting.read)}`"


def describe_limits(read: Reader) -> str:
    """Return what the reader says about a value that cannot be right."""
    try:
        read(object())
    except ValueError as wrong:
        allowed = str(wrong).removeprefix("must be ").split("; ssh-keyscan")[0].split("; here is")[0]
        return allowed.replace("a text in quotes", "text")
    raise AssertionError(f"{read} takes everything")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

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
- Relative paths are below the folder of the file.
- Every key can be given as `TIDEMARK__SECTION__KEY`, for example `TIDEMARK__SITES__PLANT1__STORE`. The environment wins.
- An unknown key is an error. It names the line and the nearest key.
- Passwords and private keys stand in files of their own. The settings name those files.
"""


def page() -> str:
    return "\n".join([HEAD, *("\n".join(_section_lines(section)) + "\n" for section in SECTIONS)])


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

"""What is made from the parser of the command: words that complete a line, the scripts of three shells, the man page.

A shell's script asks `tidemark completion suggest -- WORDS`, so it needs no change when a verb does. Pure, but for names.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence

NAMES = {"LINK": "links", "SUBJECT": "links", "S": "sites", "SITE": "sites", "R": "receivers", "NODE": "nodes"}
"""The section of the settings whose names an argument takes, by its metavar."""

SCRIPTS = {
    "bash": """\
# in ~/.bashrc:  eval "$(tidemark completion bash)"
_tidemark() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]/#\\~/$HOME}" completion suggest -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _tidemark tidemark
""",
    "zsh": """\
#compdef tidemark
# in ~/.zshrc, below compinit:  eval "$(tidemark completion zsh)"
_tidemark() {
    local -a found
    found=("${(@f)$("${words[1]/#\\~/$HOME}" completion suggest -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -z $found[1] ]]; then
        _files
        return
    fi
    found=("${(@)found//:/\\\\:}")
    found=("${(@)found/$'\\t'/:}")
    _describe tidemark found
}
compdef _tidemark tidemark
""",
    "fish": """\
# in ~/.config/fish/completions/tidemark.fish:  tidemark completion fish | source
function __tidemark
    set -l before (commandline -opc)
    command $before[1] completion suggest -- $before[2..] (commandline -ct) 2>/dev/null
end
complete -c tidemark -a '(__tidemark)'
""",
}


def suggest_words(
    parser: argparse.ArgumentParser, words: Sequence[str], names_of: Callable[[str], Sequence[str]]
) -> list[tuple[str, str]]:
    """Return (word, meaning) of what may stand for the last of `words`, the part of a word that is typed already.

    `names_of(section)`: the names in that section of the settings. [] where a file's name may stand, or anything."""
    *before, last = words or [""]
    option: argparse.Action | None = None
    places = _places_of(parser)
    for word in before:
        if option is not None:
            option = None
        elif word.startswith("-"):
            found = parser._option_string_actions.get(word)
            option = found if found is not None and found.nargs != 0 else None
        elif places and isinstance(places[0].choices, dict):
            if word not in places[0].choices:
                return []
            parser = places[0].choices[word]
            places = _places_of(parser)
        elif places:
            places = places[1:]
    if option is not None:
        found_words = list(_values_of(option, names_of))
    elif last.startswith("-") or not places:
        found_words = [(name, action.help or "") for action in _options_of(parser) for name in action.option_strings]
    else:
        found_words = list(_values_of(places[0], names_of))
    return [(word, meaning) for word, meaning in found_words if word.startswith(last)]


def _places_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments that are known by their place: the choice of a verb, LINK."""
    return [action for action in parser._actions if not action.option_strings]


def _options_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]


def _values_of(action: argparse.Action, names_of: Callable[[str], Sequence[str]]) -> Iterator[tuple[str, str]]:
    if isinstance(action.choices, dict):
        yield from ((name, parser.description or "") for name, parser in action.choices.items())
    elif action.choices is not None:
        yield from ((str(value), "") for value in action.choices)
    elif isinstance(action.metavar, str) and action.metavar in NAMES:
        yield from ((name, "") for name in names_of(NAMES[action.metavar]))


def render_man(parser: argparse.ArgumentParser, version: str) -> str:
    """Return the man page (roff) with every verb and its own verbs."""
    (verbs,) = (place.choices for place in _places_of(parser) if isinstance(place.choices, dict))
    head = [f'.TH TIDEMARK 1 "" "tidemark {version}"', ".SH NAME", _roff(f"tidemark - {parser.description}")]
    parts = [*head, ".SH SYNOPSIS", _roff(parser.format_usage().removeprefix("usage: ")), ".SH OPTIONS"]
    parts += _render_arguments(parser)
    parts.append(".SH VERBS")
    for words, each in _walk(verbs):
        parts += [f".SS {_roff(words)}", _roff(each.description or ""), ".PP", _roff(each.format_usage())]
        parts += _render_arguments(each, without=parser)
        if each.epilog:
            parts += [".PP", ".nf", *map(_roff, each.epilog.splitlines()), ".fi"]
    codes = (parser.epilog or "").rpartition("\n\n")[2]
    return "\n".join([*parts, ".SH EXIT STATUS", _roff(codes.removeprefix("exit codes: "))]) + "\n"


def _walk(verbs: Mapping[str, argparse.ArgumentParser], before: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for name, parser in verbs.items():
        yield before + name, parser
        for place in _places_of(parser):
            if isinstance(place.choices, dict):
                yield from _walk(place.choices, f"{before}{name} ")


def _render_arguments(parser: argparse.ArgumentParser, without: argparse.ArgumentParser | None = None) -> Iterator[str]:
    """Yield the arguments, each with its meaning; without the options that `without` has."""
    known = without._option_string_actions if without is not None else {}
    for action in [*_places_of(parser), *_options_of(parser)]:
        if isinstance(action.choices, dict) or any(name in known for name in action.option_strings):
            continue
        value = action.metavar or "|".join(map(str, action.choices or ())) if action.nargs != 0 else ""
        named = ", ".join(action.option_strings)
        yield from (".TP", _roff(f"{named} {value}".strip()), _roff(action.help or ""))


def _roff(text: str) -> str:
    """The text as one paragraph of roff."""
    line = text.replace("\\", "\\e").replace("-", "\\-")
    line = " ".join(line.split()) if "\n" in line.strip() else line.rstrip("\n")
    line = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in line)
    return f"\\&{line}" if line.startswith((".", "'")) else line

"""Sites that somebody names for the first time: how they are reached, and what is found there.

Enter by `look_at_sites`. It opens each store, looks, and returns the keys of `[sites.NAME]`. It writes nothing, here or
there. A host key is never taken from the server itself: it is given, or the user's known hosts have it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from tidemark.errors import HostKeyError, NotFoundError, UsageError
from tidemark.operations.survey import Survey, survey_site
from tidemark.settings.values import parse_host_key, parse_path, parse_store
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress, place_of, without_password

_PLACE = re.compile(r"(?:(?P<name>[A-Za-z0-9_.-]{1,90})=)?(?P<url>.*)", re.DOTALL)
KNOWN_HOSTS = "~/.ssh/known_hosts"


@dataclass(frozen=True)
class Login:
    """How to log in at the sites: key file or SSH agent; host keys: one for all sftp sites, or one each, in their order."""

    key: str = ""
    host_keys: Sequence[str] = ()
    agent: bool = False


@dataclass(frozen=True)
class NewSite:
    """A site, how it is reached, and what was found there."""

    name: str
    address: StoreAddress
    found: Survey

    def as_settings(self) -> dict[str, Any]:
        """The keys of `[sites.NAME]` that are known."""
        store = self.address.url.removeprefix("file://")
        login = {"host_key": self.address.host_key, "key": self.address.key, "login": "agent" if self.address.agent else ""}
        return {"store": store, **{key: value for key, value in login.items() if value}, **self.found.as_settings()}

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.found.version, "schema": "", **self.as_settings()}


def look_at_sites(
    written: Sequence[str], login: Login, folder: Path, opener: Callable[[StoreAddress], Store] = open_store
) -> list[NewSite]:
    """Look at each site that is written as `[NAME=]URL`. Relative folders and keys are below `folder`.

    Raises UsageError for an address that cannot be read, NotFoundError where there is no IoTDB, and the errors of a store.
    """
    found = []
    for name, address in _list_places(written, login, folder):
        try:
            with closing(opener(address)) as store:
                survey = survey_site(store)
                there = "" if survey.data else _describe_folder(store)
        except HostKeyError as unknown:
            raise HostKeyError(unknown.message, hint=_suggest_key(address, unknown), subject=unknown.subject) from None
        if not survey.data:
            raise NotFoundError(
                f"site {name}: no data folder of an IoTDB in {address.url}; {there}",
                hint=_suggest_folder(address.url),
                subject=address.url,
            )
        found.append(NewSite(name, address, survey))
    return found


def _describe_folder(store: Store) -> str:
    """Return what is in the store's folder, for a person."""
    if names := store.list_folder(""):
        return f"there is: {', '.join(names[:10])}"
    return "that folder is not there" if store.list_files([""]).missing else "it is empty"


def _suggest_folder(url: str) -> str:
    """Return what to write in place of a folder without an IoTDB. One in `sequence`, or that itself, is too low."""
    if below := re.fullmatch(r"(?:file://)?(.+)/(?:un)?sequence(?:/.*)?", url):
        return f"it lies in IoTDB's data folder: say --site {shlex.quote(below[1])} in its place"
    return "name the folder in which IoTDB is installed, or that with `sequence` and `unsequence`"


def _suggest_key(address: StoreAddress, unknown: HostKeyError) -> str:
    if address.host_key:
        return unknown.hint
    host, port = place_of(address.url)
    return (
        f"compare that key at the server (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then --host-key SHA256:…;"
        f" or log in once by ssh -p {port} {host}, which puts it into {KNOWN_HOSTS}"
    )


def _list_places(written: Sequence[str], login: Login, folder: Path) -> Iterator[tuple[str, StoreAddress]]:
    """Yield a name and an address for each site, in order."""
    named = [(match["name"] or "", match["url"]) for text in written if (match := _PLACE.fullmatch(text))]
    remote = sum(url.startswith("sftp://") for _, url in named)
    keys = list(login.host_keys)
    if len(keys) not in (0, 1, remote):
        raise UsageError(
            f"{len(keys)} --host-key for {remote} sftp sites", hint="give one for all, or one for each, in their order"
        )
    given = iter(keys if len(keys) == remote else keys * remote)
    taken: set[str] = set()
    for name, url in named:
        try:
            store, key = parse_store(url, folder), parse_path(login.key, folder)
            pinned = parse_host_key(next(given, "")) if store.startswith("sftp://") else ""
        except ValueError as wrong:
            raise UsageError(f"--site {without_password(url)}: {wrong}", hint="./tidemark init --help") from None
        wanted = name or _name_site(store)
        unique = next(one for one in (wanted, *(f"{wanted}-{n}" for n in range(2, len(named) + 2))) if one not in taken)
        taken.add(unique)
        if store.startswith("sftp://"):
            yield unique, StoreAddress(store, pinned or _known_key(store), key, agent=login.agent)
        else:
            yield unique, StoreAddress(store)


def _known_key(url: str) -> str:
    from tidemark.stores.open_sftp import known_host_key

    return known_host_key(*place_of(url), Path(KNOWN_HOSTS).expanduser())


def _name_site(url: str) -> str:
    """Return a name for the site: of its host; of its folder where the host has a number or is this machine."""
    parts = urlsplit(url)
    host = (parts.hostname or "").partition(".")[0]
    wanted = host if host and not host.isdecimal() and ":" not in host and host != "localhost" else ""
    return re.sub(r"[^\w.-]", "-", wanted or PurePosixPath(unquote(parts.path)).name or "site", flags=re.ASCII)[:90]

"""The checks of a store, and the class of findings.

Checked are login and host key, tools, folders, the right to write, hard links, clock and space. Where Tidemark must be able
to write, a small file is written, read and removed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.errors import DiskFullError, NotFoundError, PermanentError, TidemarkError
from tidemark.operations.survey import Survey, has_folder, survey_site
from tidemark.settings.model import ReceiverSettings, SiteSettings
from tidemark.settings.values import format_toml
from tidemark.stores.listing import list_names, mark_unlisted, odd_paths_to_report
from tidemark.stores.open import TIERS
from tidemark.stores.protocol import UNLISTED, Store, StoreAddress, Tier, local_root
from tidemark.sync.notes import LET_LIST
from tidemark.tsfiles.names import RESOURCE, refuse_misplaced_files
from tidemark.untrusted_files import NO_LINK

LOW_BYTES = 1_000_000_000
CLOCK_SECONDS = 5.0  # with a larger difference, times in logs and landings are hard to compare
DEPTH = 8  # folder levels below a data folder, to find one file for a trial link
_TRIAL = re.compile(r"(?:\.tidemark-)?doctor-([0-9]{9,12})-[0-9a-f]{8}(?:\.[0-9a-f]{8}\.tmp)?")
_TRIAL_SECONDS = 3600.0
_HALVES = {"sequence": "unsequence", "unsequence": "sequence"}
TOOLS = {
    Tier.LOCAL: "on this machine",
    Tier.PYTHON: "python3 and a shell: fastest",
    Tier.POSIX: "a shell with POSIX tools, no python3: digests by sha256sum",
    Tier.SFTP: "SFTP only: every byte crosses the wire to be checked",
}

Opener = Callable[[StoreAddress], Store]
Clock = Callable[[], float]


def check_receiver(receiver: ReceiverSettings, opener: Opener, clock: Clock) -> Sequence[Check]:
    """Check the receiver's store: reached, writable, space; a local one also for symlinks in the paths of its files."""
    name = f"receiver {receiver.name}"
    address = StoreAddress.of(receiver)
    found = list(check_store(name, address, opener, lambda store: check_writable(name, store, clock)))
    if address.url.startswith("file://"):
        found += _links_below(name, Path(local_root(address.url)))
    return found


def _links_below(name: str, root: Path) -> Iterator[Check]:
    """Find symlinks among the receiver's folders, and in `data/` down to partitions: files behind them are not read."""
    for where in ("*", "data/*", "data/*/*"):
        for place in sorted(root.glob(where)):
            if place.is_symlink():
                path = str(place.relative_to(root))
                yield fail_check(f"{name}: {path}", PermanentError(f"{path} is a symlink; links are not followed"), NO_LINK)


def check_site(site: SiteSettings, opener: Opener, clock: Clock) -> Sequence[Check]:
    """Check the site's store: reached, its folders there, hard links on every data disk."""
    name = f"site {site.name}"
    address = StoreAddress.of(site)
    return check_store(name, address, opener, lambda store: _check_site_folders(name, site, store, clock))


def check_store(
    name: str, address: StoreAddress, opener: Opener, look: Callable[[Store], Iterator[Check]]
) -> Sequence[Check]:
    """Open the store, report how it is reached, and run `look` on it. Raises no error of the far end."""
    checks: list[Check] = []
    try:
        with closing(opener(address)) as store:
            links = "hard links" if store.properties.hard_links else "no hard links"
            checks.append(pass_check(name, f"{address.url}: {TOOLS[store.properties.tier]}; {links}"))
            checks.extend(look(store))
    except TidemarkError as trouble:
        checks.append(fail_check(name, trouble))
    if address.tier != "auto":
        checks.append(_check_tier(name, address, opener))
    if address.key and _read_by_others(address.key):
        checks.append(pass_check(f"{name}: key", f"warning: others than its owner may read {address.key}: chmod 600 it"))
    return checks


def _read_by_others(key: str) -> bool:
    """Return whether others may read the key. ssh would refuse it; Tidemark uses it, since containers get such keys. A key
    that others may write is refused (`stores.ssh.login`)."""
    with suppress(OSError):
        return bool(Path(key).expanduser().stat().st_mode & 0o077)
    return False


def _check_tier(name: str, address: StoreAddress, opener: Opener) -> Check:
    """Compare the tier that the settings force with the one that a probe finds."""
    label = f"{name}: tier"
    try:
        with closing(opener(replace(address, tier="auto"))) as store:
            found = store.properties.tier
    except TidemarkError as trouble:
        return fail_check(label, trouble)
    forced = f'tier = "{address.tier}" is forced by the settings'
    if TIERS[address.tier] is found:
        return pass_check(label, f"{forced}, and is what the probe finds")
    detail = f"{forced}; the probe finds {found.value} ({TOOLS[found]})"
    if list(TIERS.values()).index(TIERS[address.tier]) > list(TIERS.values()).index(found):
        return pass_check(label, detail)
    return fail_check(
        label, PermanentError(detail), f'set tier = "auto" for {name} in the settings, or install what is missing there'
    )


def check_writable(name: str, store: Store, clock: Clock) -> Iterator[Check]:
    """Check a store that we write to: the right to write, its clock, its space."""
    try:
        difference = _trial_write(store, "", clock)
        _remove_old_trials(store, "", clock)
    except PermanentError as refused:
        yield fail_check(f"{name}: write", refused, refused.hint or "give the login the right to write there")
        return
    yield pass_check(f"{name}: write", "a file was written, looked at and removed")
    yield _check_clock(name, difference)
    free = store.free_bytes()
    if free is not None and free < LOW_BYTES:
        yield fail_check(
            f"{name}: space", DiskFullError(f"only {free / 1e9:,.1f} GB free"), "free space there before the next run"
        )
    else:
        yield pass_check(f"{name}: space", "cannot be told" if free is None else f"{free / 1e9:,.1f} GB free")


def _check_site_folders(name: str, site: SiteSettings, store: Store, clock: Clock) -> Iterator[Check]:
    try:
        found = survey_site(store)
    except PermanentError:  # a file of the server that this login may not read
        found = Survey()
    yield from _check_survey(name, site, found)
    if left := _find_left_out(site, store, found):
        told = f"warning: the server's configuration names {', '.join(left)} too, not in data: what lies there is not sent"
        yield pass_check(f"{name}: data folders", told)
    folders = [("data", folder) for folder in site.data] + ([("schema", site.schema)] if site.schema else [])
    for what, folder in folders:
        yield _check_listing(f"{name}: {what}", site, store, folder, found)
    if not site.snapshot:
        yield pass_check(f"{name}: snapshot", 'snapshot = "": files are read in place, looked at before and after')
        return
    difference = None
    for folder in site.data:
        if has_folder(store, folder):
            check, difference = _trial_link(name, site, store, folder, clock)
            yield check
    if difference is not None:
        yield _check_clock(name, difference)


def _check_survey(name: str, site: SiteSettings, found: Survey) -> Iterator[Check]:
    """Compare time unit and partition interval with what the IoTDB says of itself. A wrong unit makes wrong times."""
    pairs = {
        "time_unit": (f'"{site.time_unit}"', f'"{found.time_unit}"' if found.time_unit else ""),
        "partition_interval_ms": (str(site.partition_interval_ms), str(found.partition_interval_ms or "")),
    }
    apart = {key: has for key, (said, has) in pairs.items() if has and said != has}
    label, version = f"{name}: IoTDB", found.version or "its version is not told"
    for key, has in apart.items():
        differs = PermanentError(f"{version}: its files say {key} = {has}, the settings {pairs[key][0]}")
        yield fail_check(label, differs, f"write {key} = {has} in [sites.{site.name}], before the first sync")
    if found.version and not apart:
        told = ", ".join(f"{key} = {has}" for key, (_, has) in pairs.items() if has)
        yield pass_check(label, f"{version}; {told or 'unit and interval are not told'}")


def _check_listing(label: str, site: SiteSettings, store: Store, folder: str, found: Survey) -> Check:
    """Check, by the listing that a run makes, whether everything in the folder can be listed."""
    listing = list_names(store, [folder], RESOURCE)
    if listing.missing:
        what = "data" if folder in site.data else "schema"
        return fail_check(label, NotFoundError(f"{folder} is not there"), _suggest_folder(site, what, found))
    for path, why in odd_paths_to_report(listing.odd, site.data) if folder in site.data else mark_unlisted(listing.odd):
        if why.startswith(UNLISTED):
            return fail_check(label, PermanentError(f"{path} {why}"), LET_LIST)
    if folder in site.data:
        try:
            refuse_misplaced_files((entry.path for entry in listing.entries), folder, site.name)
        except PermanentError as misplaced:
            return fail_check(label, misplaced, misplaced.hint)
    other = _find_other_half(site, store, folder)
    return pass_check(label, f"{folder}; {other} beside it is not in data: its files are not sent" if other else folder)


def _suggest_folder(site: SiteSettings, what: str, found: Survey) -> str:
    named = any(f"{folder}/".startswith(f"{data}/") for folder in found.data for data in site.data)
    if what == "data" and found.data and not named:  # else a disk is missing
        return f"found {found.data[0]}; write data = {format_toml(found.data)} in [sites.{site.name}]"
    if what == "schema" and found.schema not in ("", site.schema):
        return f'found {found.schema}; write schema = "{found.schema}" in [sites.{site.name}]'
    look = "./tidemark init --site FOLDER shows what fits an IoTDB"
    return f"see [sites.{site.name}] store and {what}; is the disk mounted? {look}"


def _find_other_half(site: SiteSettings, store: Store, folder: str) -> str:
    """Return the folder of the other half (sequence or unsequence), if it exists and is no data folder; else ""."""
    parent, slash, name = folder.rstrip("/").rpartition("/")
    half = _HALVES.get(name, "")
    other = f"{parent}{slash}{half}"
    known = {data.rstrip("/") for data in site.data}
    return other if half and other not in known and has_folder(store, other) else ""


def _find_left_out(site: SiteSettings, store: Store, found: Survey) -> list[str]:
    """Return the folders of the server that no data folder is, holds or lies beside: those of a disk that was added."""
    root = "/" + store.url.partition("://")[2].partition("/")[2].rstrip("/") + "/"
    known = [folder.rstrip("/").removeprefix(root) for folder in site.data]
    parents = {folder.rpartition("/")[0] for folder in known}
    left = [folder for folder in found.data if not any(f"{folder}/".startswith(f"{one}/") for one in known)]
    away = [folder for folder in left if folder.rpartition("/")[0] not in parents]
    return away if len(left) < len(found.data) else []  # else data is wrong, and its own check says so


def _trial_write(store: Store, folder: str, clock: Clock) -> float:
    """Write a small file, check it, remove it; return how many seconds the store's clock is ahead of ours."""
    path = f"{folder}{'/' if folder else ''}.tidemark-{_name_trial(clock)}"
    before = clock()
    try:
        # CRASH WINDOW: the file is left, or a temp file: a doctor of an hour later removes it.
        store.publish(path, b"tidemark doctor\n")
        entry = store.stat(path)
        between = (before + clock()) / 2
    finally:
        with suppress(TidemarkError):
            store.remove([path])
    return (entry.mtime + 0.5 - between) if entry else 0.0


def _trial_link(name: str, site: SiteSettings, store: Store, data: str, clock: Clock) -> tuple[Check, float | None]:
    """Link one file of a data folder to its snapshot folder. Without links sync reads in place: no failure."""
    parent = data.rstrip("/").rpartition("/")[0]
    beside = f"{parent}/{site.snapshot}" if parent or data.startswith("/") else site.snapshot
    place = f"{beside}/{_name_trial(clock)}"
    label = f"{name}: hard links for {data}"
    if not store.properties.hard_links:
        return pass_check(label, "the far end cannot link: files are read in place, looked at before and after"), None
    try:
        difference = _trial_write(store, place, clock)
        _remove_old_trials(store, beside, clock)
        sample = _any_file(store, data, DEPTH)
        if sample is None:
            return pass_check(label, f"{beside} can be written; no file in {data} yet to try a link with"), difference
        # CRASH WINDOW: the link is left, and keeps the file's bytes: a doctor of an hour later removes it.
        gone = store.link([(sample, f"{place}/link")])
        return pass_check(
            label, f"{beside} is on the same disk" if not gone else "the file tried was just removed"
        ), difference
    except PermanentError as refused:
        return pass_check(
            label, f"not possible, so files are read in place, looked at before and after: {refused.message}"
        ), None
    finally:
        with suppress(TidemarkError):
            store.remove_tree(place)


def _name_trial(clock: Clock) -> str:
    """A name that says when the trial began."""
    return f"doctor-{clock():.0f}-{secrets.token_hex(4)}"


def _remove_old_trials(store: Store, folder: str, clock: Clock) -> None:
    """Remove what doctors that were killed left in a folder. Those of the last hour may be at work."""
    for name in store.list_folder(folder):
        trial = _TRIAL.fullmatch(name)
        if trial is not None and float(trial[1]) < clock() - _TRIAL_SECONDS:
            place = f"{folder}{'/' if folder else ''}{name}"
            store.remove([place]) if name.startswith(".") else store.remove_tree(place)


def _any_file(store: Store, folder: str, depth: int) -> str | None:
    """Return a regular file below `folder`, without listing all of it."""
    names = store.list_folder(folder)
    for name in names[:20]:
        if store.stat(f"{folder}/{name}") is not None:
            return f"{folder}/{name}"
    for name in names[:5] if depth else ():
        found = _any_file(store, f"{folder}/{name}", depth - 1)
        if found:
            return found
    return None


def _check_clock(name: str, ahead: float) -> Check:
    detail = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} ours" if abs(ahead) >= 1 else "agrees with ours"
    if abs(ahead) > CLOCK_SECONDS:
        return fail_check(f"{name}: clock", PermanentError(detail), "set both clocks by NTP")
    return pass_check(f"{name}: clock", detail)


@dataclass(frozen=True)
class Check:
    """One finding. `kind` is the exit code if it is not ok."""

    name: str
    ok: bool
    detail: str
    hint: str = ""
    kind: int = 0


def pass_check(name: str, detail: str) -> Check:
    return Check(name, True, detail)


def fail_check(name: str, trouble: TidemarkError, hint: str = "") -> Check:
    return Check(name, False, trouble.message, hint or trouble.hint, trouble.kind)

"""Who owns a device: the site that first sent it. Pure decisions.

Source: seed 000 ("there can only be one data source for one device"), DESIGN §1 "device owner"; first come, first
served on the full device name. In the original the check was off from 0.12 on and one conflict rejected a whole
storage group (research/iotdb.md B7, B13); here exactly the file that holds a foreign device is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class Owner:
    """`since` in seconds since 1970."""

    site_id: str
    since: float


@dataclass(frozen=True)
class Claimed:
    """The file may load; `new` are devices that nobody owned, in name order."""

    new: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """The file may not load: `device`, the first by name, belongs to another site."""

    device: str
    owner: Owner


def claim(devices: Iterable[str], owners: Mapping[str, Owner], site_id: str) -> Claimed | Refused:
    """Decide one file of `site_id` that holds `devices` (canonical names). `owners` knows at least those that are owned."""
    new = []
    for device in sorted(set(devices)):
        owner = owners.get(device)
        if owner is None:
            new.append(device)
        elif owner.site_id != site_id:
            return Refused(device, owner)
    return Claimed(tuple(new))


def refusal_reason(refused: Refused, site_name: str, owner_name: str, receiver: str) -> str:
    """What the sender and the operator read: owner, since when, and the command that takes the device over."""
    since = datetime.fromtimestamp(refused.owner.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"device {refused.device} belongs to site {owner_name} ({refused.owner.site_id}) since {since}; to take it over: "
        f"./tidemark owners transfer {_shell(refused.device)} --to {_shell(site_name)} --receiver {receiver}"
    )


def _shell(word: str) -> str:
    plain = all(c.isalnum() or c in "._-/" for c in word)
    return word if plain else "'" + word.replace("'", "'\\''") + "'"

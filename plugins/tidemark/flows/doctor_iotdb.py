"""What `doctor` looks at in an IoTDB that a receiver names: reached, login, version, unit of time."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.errors import TidemarkError
from tidemark.flows.findings import Check, bad, good
from tidemark.settings.model import ReceiverSettings, Settings


def check_iotdb(receiver: ReceiverSettings, settings: Settings) -> Sequence[Check]:
    """One check. Whether the server sees the receiver's folder shows only at the first LOAD."""
    from tidemark.receiver.iotdb.load import server_of
    from tidemark.receiver.iotdb.server import Connected

    name = f"receiver {receiver.name}: iotdb"
    try:
        if not receiver.store.startswith("file://"):
            return [good(name, "not used here: a remote receiver is loaded by the Tidemark on its own machine")]
        with Connected(server_of(receiver)) as server:
            version, unit = server.version, server.unit
    except TidemarkError as trouble:
        return [bad(name, trouble)]
    sites = {settings.sites[link.site] for link in settings.links.values() if link.receiver == receiver.name}
    others = sorted(site.name for site in sites if unit and site.time_unit != unit)
    told = f"{receiver.iotdb}: IoTDB {version.text}, times in {unit or 'a unit it does not say'}"
    if others:
        mistaken = TidemarkError(f"{told}; sites with another unit cannot be loaded into it: {', '.join(others)}")
        return [bad(name, mistaken, "set time_unit of those sites, or timestamp_precision of a server without data")]
    return [good(name, f"{told}; files are LOADed from {receiver.store}")]

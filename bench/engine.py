"""The transfer engine as a process of its own: everything below one store's folder to another store.

python -m bench.engine SOURCE_URL TARGET_URL [--host-key SHA256:…] [--key FILE] [--target-only] [--connections N]

As a command of ours does (`cli.__main__`), it has the collector of cycles look seldom. It logs in while the rest of the
program is still being loaded.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading

from tidemark.errors import TidemarkError
from tidemark.native import collect_seldom
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress, Tier


def run() -> int:
    collect_seldom()
    asked = _asked()
    tier = Tier(asked.tier) if asked.tier else None

    addresses = (
        StoreAddress(asked.source, asked.host_key, asked.key),
        StoreAddress(asked.target, asked.target_host_key or asked.host_key, asked.target_key or asked.key),
    )
    ends: dict[int, Store | TidemarkError] = {}

    def open_end(number: int) -> None:
        address = addresses[number]
        try:
            ends[number] = open_store(address, tier if address.url.startswith("sftp:") else None)
        except TidemarkError as error:
            ends[number] = error

    opening = [threading.Thread(target=open_end, args=(number,)) for number in range(2)]
    for one in opening:
        one.start()
    from tidemark.transfer.engine import Failed, SendItem, SendOptions, send_files

    for one in opening:
        one.join()
    source, target = (_opened(ends[number]) for number in range(2))
    entries = source.list_files([""]).entries
    items = [SendItem(entry.path, entry.path, entry.size) for entry in entries]
    crossed: list[int] = []
    options = SendOptions(
        connections=asked.connections,
        digest_at_source=not asked.target_only,
        should_stop=(lambda: sum(crossed) >= asked.stop_after) if asked.stop_after else None,
    )
    failed = [one for one in send_files(source, target, items, options, crossed.append) if isinstance(one, Failed)]
    source.close()
    target.close()
    for one in failed[:10]:
        print(one.error.message, file=sys.stderr)
    gc.freeze()
    return 1 if failed else 0


def _opened(end: Store | TidemarkError) -> Store:
    if isinstance(end, TidemarkError):
        sys.exit(end.message)
    return end


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.engine", description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--host-key", default="")
    parser.add_argument("--key", default="")
    parser.add_argument("--target-host-key", default="", help="where the target's server is another one than the source's")
    parser.add_argument("--target-key", default="")
    parser.add_argument("--tier", default="")
    parser.add_argument("--target-only", action="store_true", help="SHA-256 at the target alone")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--stop-after", type=int, default=0, help="bytes; what is under way then is left for another run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run())

"""The pictures of README and concepts.

python -m docs.make.pictures        writes docs/pictures/*.svg
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.make.drawing import Picture

FOLDER = Path(__file__).resolve().parents[1] / "pictures"
Draw = Callable[[], Picture]


def overview() -> Picture:
    p = Picture(
        960, 300, "Sites send sealed files to a landing. A load puts them into the catalog. Readers read the catalog."
    )
    sites = ("wind farm", "factory", "ship")
    for row, name in enumerate(sites):
        p.box((24, 24 + row * 58, 150, 46), name, ("Apache IoTDB",), "edge")
        p.way((174, 47 + row * 58), (288, 93 if row == 1 else 87 + 6 * row))
    p.words(240, 40, "SSH", "head", "middle")
    p.words(99, 224, "each file once,", "small", "middle")
    p.words(99, 242, "SHA-256 at both ends", "small", "middle")
    p.box((292, 24, 172, 146), "landing", ("one folder for each run", "manifest.json", "ends it"), "centre")
    p.way((464, 93), (556, 93))
    p.words(510, 84, "load", "head", "middle")
    p.words(510, 112, "check", "small", "middle")
    p.words(510, 128, "place", "small", "middle")
    p.box((560, 24, 172, 146), "catalog", ("what readers see", "newest wins", "overlaps are merged"), "centre")
    readers = ("Parquet, CSV", "Spark", "an IoTDB")
    for row, name in enumerate(readers):
        p.box((806, 24 + row * 58, 130, 46), name)
        p.way((732, 93 if row == 1 else 87 + 6 * row), (802, 47 + row * 58))
    p.way((600, 170), (600, 194), (378, 194), (378, 174), back=True)
    p.words(489, 189, "receipt.json", "mono", "middle")
    p.box((292, 216, 440, 62), "ledger", ("SQLite or PostgreSQL: every file, its digest, its way",), "box")
    p.way((732, 247), (802, 247))
    p.box((806, 204, 130, 86), "proof", ("coverage", "verify", "why"), "proof")
    return p


def run() -> Picture:
    p = Picture(960, 262, "A run: recover, select files, schema, deletions, files, finish, cleanup; then the load.")
    steps = (
        ("recover", "read receipts,", "end what is open"),
        ("select_files", "list the site,", "link what is new"),
        ("sync_schema", "send what the", "schema log got"),
        ("transfer_deletes", "say what is", "gone at the site"),
        ("transfer_files", "blocks, digests,", "rename"),
        ("finish", "manifest.json", "by rename"),
        ("cleanup", "remove links,", "old landings"),
    )
    for column, (name, *lines) in enumerate(steps):
        x = 18 + column * 134
        p.box((x, 30, 124, 84), "", ("", *lines), "edge" if column < 5 else "centre")
        p.words(x + 62, 58, name, "mono", "middle")
        if column < len(steps) - 1:
            p.way((x + 124, 72), (x + 133, 72))
        p.way((x + 62, 114), (x + 62, 160), back=True)
    p.box(
        (18, 164, 928, 40),
        "",
        ("ledger: a step reads it, does what is missing, makes the bytes durable, then writes the record",),
    )
    p.words(480, 236, "Killed anywhere? Run the same command again. It goes on where the ledger stands.", "small", "middle")
    return p


def landing() -> Picture:
    p = Picture(960, 300, "A landing: files first, the manifest last; the load answers with a receipt.")
    p.box((24, 28, 420, 190), "", (), "faint")
    p.words(40, 54, "landing/<site id>/<run>-1/", "mono")
    rows = (
        ("data/sequence/…/17-1-0-0.tsfile.part", "1  blocks arrive"),
        ("data/sequence/…/17-1-0-0.tsfile", "2  digest equal: renamed"),
        ("data/sequence/…/17-1-0-0.tsfile.resource", ""),
        ("manifest.json", "3  renamed last: whole"),
        ("receipt.json", "5  the answer"),
    )
    for row, (name, what) in enumerate(rows):
        p.words(60, 84 + row * 30, name, "mono")
        if what:
            p.words(456, 84 + row * 30, what, "small")
    p.box(
        (668, 28, 268, 190),
        "load",
        (
            "4  digest again",
            "structure, in a child with limits",
            "who owns the devices",
            "place in data/",
            "catalog and owners: one transaction",
        ),
        "centre",
    )
    p.way((600, 170), (664, 150))
    p.way((664, 204), (560, 204), back=True)
    p.words(480, 254, "The sender reads receipt.json with its next run and knows of each file:", "small", "middle")
    p.words(480, 274, "loaded, refused (another site owns the device), or quarantined (with the reason)", "small", "middle")
    return p


def newest() -> Picture:
    p = Picture(960, 320, "Four files of one series and what readers see: the newest value, deletions applied.")
    left, step = 330, 72
    for column in range(8):
        p.words(left + column * step, 40, f"t{column + 1}", "small", "middle")
    files = (
        ("sequence, version 1", "1-1-0-0.tsfile", {0: "5", 1: "5", 2: "5", 3: "5"}, "edge"),
        ("sequence, version 3", "3-3-0-0.tsfile", {4: "7", 5: "7", 6: "7", 7: "7"}, "edge"),
        ("unsequence, version 2: late rows", "2-2-0-0.tsfile", {1: "6", 2: "6", 5: "6"}, "edge"),
        ("deletions of version 3", "3-3-0-0.tsfile.mods", {6: "×", 7: "×"}, "proof"),
    )
    for row, (name, file, values, kind) in enumerate(files):
        y = 58 + row * 46
        p.words(24, y + 16, name)
        p.words(24, y + 32, file, "mono")
        for column, value in values.items():
            p.box((left - 24 + column * step, y, 48, 32), value, (), kind)
    p.line((24, 250), (936, 250))
    p.words(24, 283, "readers see", "head")
    for column, value in {0: "5", 1: "6", 2: "6", 3: "5", 4: "7", 5: "6"}.items():
        p.box((left - 24 + column * step, 262, 48, 32), value, (), "centre")
    return p


def merge() -> Picture:
    p = Picture(960, 270, "Overlapping files are merged into one; its sources stay until it has settled.")
    p.words(150, 36, "loaded", "head", "middle")
    for row, name in enumerate(("a  sequence", "b  sequence", "c  unsequence")):
        p.box((40 + 30 * row, 54 + row * 46, 200, 34), "", (name,), "edge")
    p.way((316, 116), (388, 116))
    p.words(352, 106, "merge", "head", "middle")
    p.words(490, 36, "merged", "head", "middle")
    p.box((396, 90, 190, 52), "a + b + c", ("newest of each time",), "centre")
    p.box((396, 160, 190, 34), "", ("sources a, b, c are kept",), "faint")
    p.way((594, 116), (676, 116))
    p.words(635, 106, "14 days", "head", "middle")
    p.words(790, 36, "settled", "head", "middle")
    p.box((684, 90, 210, 52), "a + b + c", ("stands alone",), "centre")
    p.words(790, 182, "sources are removed", "small", "middle")
    p.words(
        480,
        240,
        "points in = points out + overwritten + deleted: the ledger keeps all four numbers of every merge",
        "small",
        "middle",
    )
    return p


def slots() -> Picture:
    p = Picture(
        960, 290, "A database and a time partition hash to a slot; a slot belongs to a group of three nodes on a ring."
    )
    p.box((24, 36, 190, 60), "root.factory", ("week of 2026-11-23",), "edge")
    p.way((214, 66), (290, 66))
    p.words(252, 56, "hash", "head", "middle")
    p.box((294, 36, 150, 60), "slot 4711", ("of 10,000",), "centre")
    p.way((444, 66), (520, 66))
    p.words(482, 56, "table", "head", "middle")
    p.box((524, 36, 190, 60), "head: n3", ("epoch 7",), "centre")
    p.words(24, 150, "The nodes stand on a ring. The head of a slot and the next ones hold its copies: a group.", "small")
    for number in range(1, 6):
        x = 24 + (number - 1) * 184
        p.box(
            (x, 172, 150, 54),
            f"n{number}",
            ("copy of slot 4711",) if number in (3, 4, 5) else ("",),
            "centre" if number in (3, 4, 5) else "box",
        )
        if number < 5:
            p.way((x + 150, 199), (x + 182, 199))
    p.way((835, 226), (835, 258), (99, 258), (99, 230))
    p.words(467, 252, "the ring closes", "small", "middle")
    return p


def proof() -> Picture:
    p = Picture(
        960,
        280,
        "Coverage compares the site's list with the catalog; verify compares digests; verify --deep compares points.",
    )
    places = (
        ("site", ("files that are live", "their .resource: days"), "edge"),
        ("landing", ("manifest.json", "digest of each file"), "centre"),
        ("catalog", ("data files", "digest of each file"), "centre"),
        ("readers", ("the points", "they are given"), "box"),
    )
    for column, (name, lines, kind) in enumerate(places):
        p.box((24 + column * 240, 28, 190, 76), name, lines, kind)
        if column < 3:
            p.way((214 + column * 240, 66), (260 + column * 240, 66))
    spans = (
        ("coverage", "every device and day of the site's list is in the catalog", 119, 599),
        ("verify", "the same bytes in all three places", 119, 599),
        ("verify --deep", "the same points", 119, 839),
    )
    for row, (name, what, start, end) in enumerate(spans):
        y = 138 + row * 46
        p.line((start, y - 12), (start, y + 10), (end, y + 10), (end, y - 12))
        p.words((start + end) / 2, y + 1, f"{name}: {what}", "", "middle")
    return p


def layers() -> Picture:
    p = Picture(960, 457, "The packages in layers. Imports point down.")
    rows = (
        (("cli", "the command"),),
        (("orchestration", "everything that knows Airflow"), ("catalog_source", "for Spark")),
        (("operations", "decisions, housekeeping, doctor, rebuild"),),
        (("proof", "coverage, verify, why"),),
        (("changes", "of MySQL and MariaDB tables"), ("sync", "edge to landing")),
        (("receiver", "landing to readers"),),
        (("cluster", "slots, nodes, replicas, migration"),),
        (("transfer", "bytes"), ("formats", "manifest, receipt"), ("engines", "children, Spark"), ("app", "opened")),
        (("stores", "where bytes live"),),
        (("tsfiles", "what a TsFile is"),),
        (("connections", "logins"), ("ledger", "a database"), ("settings", "tidemark.toml"), ("untrusted_files", "")),
        (("visible_log", ""), ("spelling", ""), ("installation", "")),
        (("errors", ""), ("progress", ""), ("native", ""), ("visible", "")),
    )
    for row, packages in enumerate(rows):
        wide = (820 - 8 * (len(packages) - 1)) // len(packages)
        for column, (name, what) in enumerate(packages):
            kind = "edge" if name in ("sync", "receiver") else "proof" if name == "proof" else "box"
            x, y = 24 + column * (wide + 8), 18 + row * 33
            p.box((x, y, wide, 27), "", (), kind)
            p.words(x + wide / 2, y + 18, f"{name}: {what}" if what else name, "", "middle")
    p.way((880, 26), (880, 437))
    p.words(892, 190, "imports", "small")
    p.words(892, 206, "point", "small")
    p.words(892, 222, "down", "small")
    return p


PICTURES: tuple[Draw, ...] = (overview, run, landing, newest, merge, slots, proof, layers)


def main() -> None:
    for draw in PICTURES:
        draw().write(FOLDER / f"{draw.__name__}.svg")


if __name__ == "__main__":
    main()

"""How far the run of a link is, as the process at work noted it: for other processes to show, never to decide by."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.database import now
from tidemark.progress import Figures, Tick

_COLUMNS = ("phase", "files", "files_total", "bytes", "bytes_total", "rate", "seconds_left")


def put_progress(connection: Connection, link: str, run_id: str, figures: Figures) -> None:
    """The newest figures of the link's run replace what was noted before."""
    t = figures.tick
    said = (t.phase, t.done, t.total, t.bytes_done, t.bytes_total, figures.rate, figures.left)
    values = {"link": link, "run_id": run_id, **dict(zip(_COLUMNS, said, strict=True)), "noted": now(connection)}
    connection.execute(
        sa.text(
            f"INSERT INTO link_progress ({', '.join(values)}) VALUES ({', '.join(':' + name for name in values)})"
            f" ON CONFLICT (link) DO UPDATE SET {', '.join(f'{n} = excluded.{n}' for n in values if n != 'link')}"
        ),
        values,
    )


def progress_of(connection: Connection) -> dict[str, Figures]:
    """{run: its figures} of every link's newest run that said anything."""
    rows = connection.execute(sa.text(f"SELECT run_id, {', '.join(_COLUMNS)} FROM link_progress"))
    return {
        str(run): Figures(Tick(phase, int(done), int(total), int(some), int(all_)), float(rate), left)
        for run, phase, done, total, some, all_, rate, left in rows
    }

"""The rows of the link's side: a site's files, what the receiver acknowledged of them, and the work of runs.

    links  sites, links, files of a site, positions in schema logs: `stream_files`, `ack_files`, `mark_gone` …;
           the newest try of a scheduler's task, for `status`
    runs   the run, its items, its landings, its progress
    holds  files without a digest made at the source, and files in quarantine at the link
    bandwidth  shares of a receiver's cap among the processes that send

Every function works in the caller's transaction. A run is continued from these rows alone. The `file` table is streamed as
plain tuples, since a site may have a million files. Imports `ledger.database`, `ledger.sql`, `ledger.processes`, `progress`.
Written by `sync`, and by `operations` for decisions and rebuild; others read. Tables: `sql/0001_link_side.sql`,
`sql/0006_sender_care.sql`, `sql/0011_link_attempt.sql`.
"""

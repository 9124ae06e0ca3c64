"""Bring the rows that tables have when their capture begins: in chunks by key, each at a proved place between the changes.

Enter by `run.bootstrap_tables`, for tables that `requests.write_request` asks for. Nothing is written at the source.

    state   how far each table is, and the chunk that is on its way
    catalog   tables that a log does not describe, by the server's catalog
    requests  what others ask who do not hold the source
    tables  a table of the catalog in the form in which a log gives its rows; its key, and questions by it
    rows    rows of an answer in the form of the store
    chunks  a snapshot, its place in the log, rows behind a key
    between keys that changed while a snapshot of MySQL was opened
    run     chunk by chunk: the changes up to its place, its rows

A table is read in the order of its key, or, where it has none, as one chunk. A chunk is read in a consistent snapshot, of
which MariaDB tells the place in its log; at MySQL the keys are left out of which that is not known. The changes up to that
place are captured, then the rows are appended: a transaction of the store without a GTID, at the place of the one before
it. Each chunk stands once: it is written down before it is appended, and after a death the store says whether it stands.
"""

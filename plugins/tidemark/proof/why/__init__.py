"""Explain the state of a thing by rules over ledger rows; the first rule that fits answers.

Enter by `subjects.explain_subject`: it finds out what a name means (link, site, run, landing, path, device), reads its rows
and applies the rules.

    file       one file: the ordered rules over what its links and its receivers know
    others     run, landing, link, site, device
    changes    source of changes, table, gap, GTID, task; it asks the server
    subjects   the lookup, and the rows that rules need

Imports `changes`, `proof.explanation`, `proof.status`, `proof.coverage.gather`, `sync.notes`, `formats`, `ledger`,
`stores.listing`, `tsfiles.sealed`. The rules are pure. Nothing is changed. The site is asked only for a file that no run has
listed yet.
"""

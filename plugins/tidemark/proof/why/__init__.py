"""Why is it as it is: rules over rows, the first that fits answers.

Enter by `subjects.explain_subject`: it finds out what was named (link, site, run, landing, path, device), reads it, and
asks.

    file       one file: the rules in one order, over what its links and its receivers know
    others     run, landing, link, site, device
    subjects   the lookup, and the rows that rules need

Imports `proof.explanation`, `proof.status`, `proof.coverage.gather`, `sync.notes`, `formats`, `ledger`,
`stores.listing`, `tsfiles.sealed`. The rules are pure. Nothing is changed; the site is asked only for a file that no
run listed yet.
"""

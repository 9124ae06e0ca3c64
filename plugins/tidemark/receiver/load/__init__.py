"""Load landings into the catalog: check, own, place, record in one transaction per landing, answer, clean.

Enter by `load.load(app, receiver)`. `retry.replay_refused` and `retry.recheck_waiting` load files that waited.

    check       check that a file is what its manifest says and can be read; one task in a child process
    place       give a file its place at the receiver; durable before the ledger names it
    result      what a load did, with every trouble
    admit       decide per file: loaded, refused or held; and which site owns a device; pure
    landings    find landings, read manifests, order them, keep answers, clean up
    removal/    vanished files: when they leave the catalog; guards deletions at the data centre
    schema      the sites' schema logs, and the series that they and the files declare
    record      write the decisions to the ledger in the caller's transaction
    examine     copy a landing's files where others may write to them, check them, decide
    retry       refused files whose devices are free now, files that the operator releases
    load        all of it, site by site

A load holds the lease `load:<receiver>`, so two never run at once. Imports `receiver.session`, `receiver.proved_files`,
`receiver.faults`, `cluster`, `app`, `engines`, `formats`, `ledger`, `settings`, `stores`, `tsfiles`. The order protects
against a crash anywhere: bytes durable in place, one transaction, the receipt, the clean-up. The next load continues. A
faulty file or landing is reported, and the rest goes on.
"""

"""When a vanished file leaves the catalog, and what the load does about it.

Enter by `vanished.apply_vanished` and `replaced.recheck_settled`, both inside the load's transaction.

    rules             when a file leaves, stays marked, waits or asks the operator
    settled           when a settled merged file may be replaced, and what has to come again for that
    surviving_points  do points of a file live on in others; one task in a child process
    survival          which vanished files are asked that, and in which files
    replaced          settled files whose sources changed: replaced, or what is late is named; approvals
    vanished          vanished files taken out of the catalog, or kept and marked

A *superseded* file leaves when every file that covers it is in the catalog. A *dropped* file stays, marked, with
`deletes = "keep"`, which is the default, and leaves with `"apply"`. Where the file's bytes are here the verdict goes
by its points; names are hints (docs/decisions/0005). The first guard is at the site, `sync.select.vanished`: it
decides which vanished files may be told at all.

Imports `receiver.load.admit`, `receiver.load.check`, `ledger`, `tsfiles`, `untrusted_files`. `rules` and `settled` are pure.
A vanished file that waits is judged again by every later load.
"""

"""Remove vanished files from the catalog: a vanished file is one that its site no longer has.

Enter by `vanished.apply_vanished` and `replaced.recheck_settled`, both inside the load's transaction.

    rules             decide whether a file leaves, stays marked, waits or needs the operator
    settled           decide whether a settled merged file may be replaced, and which files must be resent first
    surviving_points  search the points of one file in other files; one task in a child process
    survival          choose the vanished files to search for, and the files to search in
    replaced          replace settled files whose sources changed, or report what is late; approvals
    vanished          take vanished files out of the catalog, or keep and mark them

A *superseded* file leaves when every file that covers it is in the catalog. A *dropped* file stays, marked, with
`deletes = "keep"`, which is the default. It leaves with `"apply"`. Where the receiver has the file's bytes, its points
decide. Names are hints (docs/decisions/0005). The first guard is at the site: `sync.select.vanished` decides which
vanished files a manifest may report.

Imports `receiver.load.admit`, `receiver.load.check`, `ledger`, `tsfiles`, `untrusted_files`. `rules` and `settled` are pure.
Every later load judges a waiting file again.
"""

"""A new ledger from manifests, receipts, records and the files themselves, when the old one is lost.

Enter by `ledger.rebuild_ledger`; `ledger.backup_ledger` and `ledger.upgrade_ledger` are for a ledger that is there.

    answers     what a landing was answered, from its manifest, its receipt and the files that lie now; pure
    history     what a receiver kept, read in the order it came about
    decisions   decisions and settled merges written again; refused files that were taken after all
    result      what was found and what was not; rows without bytes, data files without rows
    links       the link's side, from manifests and receipts at its receiver, near or far
    nodes       what data nodes still have
    receiver    the receiver's side, replayed moment by moment, files described in child processes
    cluster     the rows of a cluster, and series that only data nodes know
    ledger      the new ledger in a file of its own, then copied into the place of the old one in one transaction

Imports `receiver.load`, `receiver.merge`, `cluster`, `sync`, `proof.coverage.site`, `engines`, `formats`, `ledger`,
`stores`, `tsfiles`. Nothing that was answered is decided again. Nothing changes at a node. A rebuild that died left
the ledger as it was. Not rebuilt: events and what no file at the receiver tells.
"""

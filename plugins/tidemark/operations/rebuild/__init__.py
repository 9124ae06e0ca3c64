"""A new ledger from manifests, receipts, records and the files themselves, when the old one is lost.

Enter by `rebuild.rebuild_ledger`; `rebuild.backup_ledger` and `rebuild.upgrade_ledger` are for a ledger that exists.

    answers     a landing's answers, from its manifest, its receipt and the present files; pure
    history     the receiver's documents, in order of time
    decisions   decisions and settled merges written again; refused files that were loaded later
    result      the findings; rows without bytes, data files without rows
    links       the link's side, from manifests and receipts at its receiver, local or remote
    nodes       the files and tables of data nodes
    receiver    the receiver's side, replayed moment by moment, files described in child processes
    cluster     the rows of a cluster, and series that only data nodes know
    rebuild     links, receivers, requests to send again, fences, in a ledger of its own; then copied over the old one

Imports `receiver.load`, `receiver.merge`, `cluster`, `sync`, `proof.coverage.site`, `engines`, `formats`, `ledger`,
`stores`, `tsfiles`. Answers are not decided again. Nothing changes at a node. A rebuild that dies leaves the ledger as it
was. Not rebuilt: events, and facts that are in no file at the receiver.
"""

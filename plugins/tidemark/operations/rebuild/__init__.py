"""A new ledger from manifests, receipts, records and the files themselves, when the old one is lost.

Enter by `rebuild.rebuild_ledger`; `rebuild.backup_ledger` and `rebuild.upgrade_ledger` are for a ledger that exists.

    answers     a landing's answers, from its manifest, its receipt and the present files; pure
    history     the receiver's documents, in order of time
    gaps        landings of a link that are lost; pure
    result      the findings; rows without bytes, data files without rows
    links       the link's side, from manifests and receipts at its receiver, local or remote
    receiver    the receiver's side, replayed moment by moment through the load, files described in child processes
    cluster     the files and tables of data nodes, the rows of a cluster, and series that only data nodes know
    from_nodes  the catalog that nodes' logs tell: in a ledger that is gone at the end, or over what documents tell
    rebuild     links, receivers, requests to send again, fences, in a ledger of its own; then copied over the old one

A landing goes through the load's own `admit_files`, `record_landing` and `record_retried`: what a file becomes is decided
in one place. Imports `receiver.load`, `receiver.merge`, `cluster`, `sync`, `engines`, `formats`, `ledger`, `stores`,
`tsfiles`. Answers are not decided again. Nothing changes at a node. A rebuild that dies leaves the ledger as it was. Not
rebuilt: events, and facts that are in no file at the receiver.
"""

"""What the records of a group's log say of its catalog.

    operation  the operations as values, and a commit of them as records; pure
    change     what a transaction changes in the ledger's catalog, as the operations of each group
    fold       the catalog of a log, and of all logs of a cluster; pure

A record says what is so from now on, not what was done: a file with all its facts, or that it left. So a catalog is the
last word on each file, and a record that is read twice changes nothing. Bodies: docs/formats/log-record.md.
"""

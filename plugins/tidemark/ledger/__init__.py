"""The metadata database, on SQLite or PostgreSQL, and the rows of every table.

Enter by `database.Ledger`: `write()` and `read()` are one transaction each. All other modules with rows are functions that
work in the caller's transaction.

    database    connections and transactions; a driver's errors as Tidemark's
    processes   the identity of a process, and whether it still runs
    leases      who may work on a link, a load or a merge; a fence that stops a replaced holder (`assert_held`)
    migrations  `sql/NNNN_name.sql`, in order, forward only
    backup      a copy of a ledger while it is in use
    soundness   checks whether an SQLite ledger is damaged
    sql         one statement for many rows, locks by name, named report queries
    journal     events that explain, and the audit of an operator's decisions
    delivery    tasks that read changes, and their storage points. For `changes`
    sender/     the link's side: links, files, runs, holds, shares of a cap. For `sync`
    cluster/    nodes, partition tables, copies, moves. For `cluster`
    receiver/   the receiver's side: landings, catalog, merges, refusals. For `receiver`

Imports `errors` and `progress`. Code that records an effect calls `leases.assert_held` in the same transaction. The ledger
decides nothing about files: the packages above it hold the rules. Events explain and are trimmed; the state of everything is
in the rows.
"""

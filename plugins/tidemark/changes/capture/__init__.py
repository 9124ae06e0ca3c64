"""Bring the changes of one source into its store: whole transactions, each once, whatever dies in between.

Enter by `run.capture` with a `Job`. Events come from `changes.connection`, files and servers alike.

    statements    what a statement is: a border, a definition, changes as text; pure
    definitions   how tables are that a log does not describe, and where in it; pure
    rows          tables and rows of a log in the form of the store, one by one; pure
    plain         many transactions that are rows alone, in arrays; pure
    transactions  from events to whole transactions; what cannot be trusted is refused
    batches       the rows of many transactions in the form of the store, by column
    parked        XA transactions between PREPARE and COMMIT
    ahead         events read ahead, so that quiet moments are seen
    identity      the names of the logs that a store is from
    known         is a transaction of a log the one that the store has
    run           from the store's durable end on, up to the end of the events
    proof         is every transaction of the logs in the store, once

Imports `changes.binlog`, `changes.connection`, `changes.mirror`, `changes.store`, `errors`, `progress`. Knows no
settings and no ledger.
"""

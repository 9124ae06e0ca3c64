"""The change store of one source: whole transactions in the order of the source, found by position, time or GTID.

Enter by `write.Writer` (one at a time, by a fence), `read.Reader` (any number, without a lock), `verify.verify_store` and
`retain.retain`. From the bottom up:

    model      what is stored: transactions, rows, shapes of tables. Frozen values
    layout     pure: hours, buckets, positions of 8 bytes, the names of files, the state after a transaction
    run        many transactions in columns, for the writer
    holders    pure: which files count after writers followed each other. The answer to what a replaced writer still writes
    block      one block as bytes: Arrow sections, a head, checksums
    disk       all effects on files, and all openings
    index      L1 and L2: sparse, sorted, derived from the blocks
    view       what is durable and whole at one moment: sealed buckets, the open bucket, the tail
    write      take over, append, make durable, close blocks, begin buckets
    read       transactions from a place on; bisection
    verify     every checksum and every seam
    retain     old hours out of sight, then off the disk; old buckets compressed harder

The files, top down (docs/formats/change-store.md): `holders/` says whose buckets count. `data/<hour>/` has buckets of closed
blocks, and an L2 index beside each. `tail/` has what is not in a closed block yet. `index.l1` is one line a bucket.
Imports `errors`, `stores.agent.durable` and `stores.os_errors`. Knows nothing of binlogs: GTID sets are text, and the caller
compares them.
"""

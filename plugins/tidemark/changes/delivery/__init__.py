"""What a store holds, given to readers: whole stretches, or divided into shards among the members of a task, in order.

    points          POINTs as users write them, found in a store
    export          a stretch of a store as JSON lines or Parquet
    shards          pure: which shard has a row, and what a shard has of each transaction
    members         pure: which member of a task holds which shard
    blocks          blocks of a store, read and divided once for all shards of a process; one shard alone
    storage_points  how far a shard is, in this store and in another one of the same source
    spans           whole transactions from one place to another, cut into parts for readers side by side
    batches         what a consumer is given: rows of one table and one shard, and the place behind them
    lines           batches as JSON lines: files of `changes consume`, dead letters
    stream          a member of a task: leases, batches, points
    tasks           tasks begun, rewound, divided anew; what retention leaves them
    http            all of it to other machines and languages

Imports `changes.binlog`, `changes.capture`, `changes.store`, `errors`, `ledger` and `stores.agent.durable`.
Knows no settings.
"""

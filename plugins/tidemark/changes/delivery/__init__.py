"""What a store holds, given to readers: whole stretches, or divided into shards, in order.

    points  POINTs as users write them, found in a store
    export  a stretch of a store as JSON lines or Parquet
    shards  pure: which shard has a row, and what a shard has of each transaction

Imports `changes.binlog`, `changes.capture`, `changes.store`, `errors` and `stores.agent.durable`.
"""

"""What a store holds, given to readers.

    points  POINTs as users write them, found in a store
    export  a stretch of a store as JSON lines or Parquet

Imports `changes.binlog`, `changes.capture`, `changes.store`, `errors` and `stores.agent.durable`.
"""

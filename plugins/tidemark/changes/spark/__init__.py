"""Changes as a data source of Spark: `spark.read` and `spark.readStream` of `format("tidemark_changes")` (docs/changes.md).

Enter by `source.register(spark)`. If `plugins/` is on the driver's PYTHONPATH, the source registers itself.

    places      where blocks come from: a store's folder, or readers of it over HTTP
    options     the options of a reader, and the place that they mean
    offsets     where a stream is, as its checkpoint keeps it; held against the store
    plan        which transactions are a batch, and which of them a task reads
    columns     the columns of one table, of whatever shape its rows are; rows as typed Arrow batches
    lines       rows of any tables, and what is no row, with canonical JSON
    task_point  a task whose point follows a stream of a folder, so that retention waits for it
    source      the data source that Spark calls

The driver plans spans. Tasks read blocks, from a path that all machines see, or from `changes serve`. There is no filter
push-down on purpose: in Spark 4.3.0 filters of one query cut the rows of the next (research/spark-tsfile.md, finding 1).
Imports pyspark in `source` alone, and no ledger in tasks of a folder; the rest of `changes` below `consume`, `settings`,
`ledger` and the parsers of `tsfiles.spark.options`.
"""

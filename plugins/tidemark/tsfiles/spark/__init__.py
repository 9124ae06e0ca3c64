"""TsFiles as a data source of Spark: `spark.read.format("tsfile")` and `df.write.format("tsfile")`.

Enter by `source.register(spark)`; where `plugins/` is on the driver's PYTHONPATH the source registers itself.

    dataset    which TsFiles a path stands for, each with its deletions; the file that names them
    survey     what a set of files holds by its statistics
    scan_plan  what a scan reads and how it is cut into tasks; pure
    options    the words of a scan and of a write; a time limit for bytes that are not trusted
    arrow      points as Arrow arrays and back; rows of devices put together to batches
    scan_read  the rows of one task, newest wins
    sink       tasks stage whole files, the driver commits them all or none
    source     the source that Spark sees

pyspark is imported here and in `spark_jobs/` alone. Imports the rest of `tsfiles`. There is no filter push-down on
purpose: in Spark 4.3.0 filters of one query cut the rows of the next (research/spark-tsfile.md, finding 1). What
need not be read is said by options.
"""

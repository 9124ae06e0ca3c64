"""TsFiles as a data source of Spark: `spark.read.format("tsfile")` and `df.write.format("tsfile")`.

Enter by `source.register(spark)`. If `plugins/` is on the driver's PYTHONPATH, the source registers itself.

    dataset    find the TsFiles of a path, each with its deletions; the manifest of a written folder
    survey     summarize a set of files by their statistics
    scan_plan  decide what a scan reads and split it into tasks; pure
    options    the options of a scan and of a write; a time limit for unverified bytes
    arrow      convert points to Arrow arrays and back; join rows of devices to batches
    scan_read  read the rows of one task, newest wins
    sink       stage whole files in tasks; the driver commits all or none
    source     the data source that Spark calls

Only this folder and `spark_jobs/` import pyspark. It imports the rest of `tsfiles`. There is no filter push-down on
purpose: in Spark 4.3.0 filters of one query cut the rows of the next (research/spark-tsfile.md, finding 1). Options
restrict what is read.
"""

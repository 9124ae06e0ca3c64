"""Changes of a source in a PySpark program, cell by cell: python docs/examples/spark_changes.py tidemark.toml OUT

OUT gets a folder of Parquet for each batch of the stream. Needs `plugins/` on the PYTHONPATH and a Java for Spark
(docs/changes.md). The project's tests run this file as it is.
"""

# %% A session. The workers must use this Python.
import os
import sys
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

settings, out = sys.argv[1], Path(sys.argv[2])
spark = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

# %% All changes of one table, typed.
orders = spark.read.format("tidemark_changes").option("tables", "shop.orders").load(settings)
orders.printSchema()
orders.groupBy("op").count().show()

# %% The table as its changes leave it: the last change of each key wins, and a deleted row is gone.
newest = Window.partitionBy(F.coalesce("after.id", "before.id")).orderBy(F.desc("seq"), F.desc("i"))
table = orders.withColumn("place", F.row_number().over(newest)).where("place = 1 AND op <> 'D'").select("after.*")
print(table.count(), "rows in shop.orders")

# %% Any tables, with JSON.
everything = spark.read.format("tidemark_changes").options(**{"from": "earliest", "controls": "true"}).load(settings)
everything.groupBy("k", "table").count().orderBy("k", "table").show()


# %% A stream into Parquet. A batch that comes again after a death overwrites itself.
def keep(batch: DataFrame, number: int) -> None:
    batch.write.mode("overwrite").option("compression", "zstd").parquet(str(out / f"batch={number}"))


stream = spark.readStream.format("tidemark_changes").options(tables="shop.orders", rowsPerBatch="100000").load(settings)
query = (
    stream.writeStream.foreachBatch(keep)
    .option("checkpointLocation", str(out / "_checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
kept = spark.read.option("basePath", str(out)).parquet(str(out / "batch=*"))
print(kept.count(), "changes kept")
assert kept.count() == orders.count()

# %%
spark.stop()

"""A receiver's catalog in a PySpark program, cell by cell: python docs/examples/spark_catalog.py tidemark.toml

The rows are those of `./tidemark read`. Needs `plugins/` on the PYTHONPATH and a Java for Spark (docs/spark.md). The
project's tests run this file as it is.
"""

# %% A session. The workers must use this Python.
import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

settings = sys.argv[1]
spark = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

# %% All devices of the tree model, a row a device and time. The ledger knows the unit of the times.
plant = spark.read.format("tidemark").options(model="tree").load(settings)
print(plant.count(), "rows of", plant.select("device").distinct().count(), "devices")

# %% Only what is needed: devices, times and columns are chosen before a file is opened. `where` would not save reading.
some = (
    spark.read.format("tidemark")
    .options(devices="root.plant1.**", start="2024-01-01", columns="time,device,a_floa3")
    .load(settings)
)
hourly = some.groupBy("device", F.window("time", "1 hour")).agg(F.avg("a_floa3").alias("mean"), F.count("*").alias("rows"))
hourly.orderBy("device", "window").show(5, truncate=False)

# %% Every point of every model as text, as `./tidemark read --tall` writes them.
points = spark.read.format("tidemark").options(layout="tall").load(settings)
points.groupBy("type").agg(F.countDistinct("device", "measurement").alias("series"), F.count("*").alias("points")).show()
print(points.count(), "points")

# %% A table of the table model in SQL.
spark.sql(f"CREATE TEMP VIEW sensors USING tidemark OPTIONS (path '{settings}', model 'table')")
spark.sql("SELECT region, line, count(*) AS rows, max(time) AS latest FROM sensors GROUP BY ALL ORDER BY ALL").show()

# %%
spark.stop()

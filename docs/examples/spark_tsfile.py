"""TsFiles in a PySpark program, cell by cell: python docs/examples/spark_tsfile.py FOLDER

FOLDER is a data folder of an IoTDB 2.x (`…/data/datanode/data`) or any folder with TsFiles; results go into FOLDER.out.
Needs `plugins/` on the PYTHONPATH and a Java for Spark (docs/spark.md). The project's tests run this file as it is.
"""

# %% A session. The workers must use this Python.
import os
import sys
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

folder, out = sys.argv[1], f"{sys.argv[1]}.out"
spark = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

# %% All devices of the tree model, a row a device and time: deletions applied, newest value wins.
plant = spark.read.format("tsfile").options(model="tree", timeUnit="ms").load(folder)
plant.printSchema()
print(plant.count(), "rows of", plant.select("device").distinct().count(), "devices")

# %% Only what is needed: columns, devices and times are chosen before a page is read.
some = (
    spark.read.format("tsfile")
    .options(model="tree", timeUnit="ms", devices="root.plant1.**", start="2024-01-01")
    .option("columns", "time,device,a_floa3,a_int31")
    .load(folder)
)
hourly = some.groupBy("device", F.window("time", "1 hour")).agg(F.avg("a_floa3").alias("mean"), F.count("*").alias("rows"))
hourly.orderBy("device", "window").show(5, truncate=False)

# %% Every series of every type, as text: what a folder holds at all.
points = spark.read.format("tsfile").options(model="tree", layout="tall").load(folder)
points.groupBy("type").agg(F.countDistinct("device", "measurement").alias("series"), F.count("*").alias("points")).show()

# %% A table of the table model in SQL.
spark.sql(f"CREATE TEMP VIEW sensors USING tsfile OPTIONS (path '{folder}', model 'table', timeUnit 'ms')")
spark.sql("SELECT region, line, count(*) AS rows, max(time) AS latest FROM sensors GROUP BY ALL ORDER BY ALL").show()

# %% Write TsFiles: all of them appear, or none. A second append wins where it has the same device and time.
calm = some.where("a_int31 IS NOT NULL").select("device", "time", "a_int31")
calm.write.format("tsfile").mode("overwrite").save(out)
late = calm.withColumn("a_int31", F.lit(-999)).limit(3)
late.write.format("tsfile").mode("append").save(out)

# %% What was written is read like anything else, and an IoTDB 2.x LOADs it.
back = spark.read.format("tsfile").option("timeUnit", "ms").load(out)
print(
    back.count(),
    "rows in",
    len(list(Path(out).glob("*.tsfile"))),
    "files,",
    back.where("a_int31 = -999").count(),
    "of them -999",
)
assert back.count() == calm.count()

# %%
spark.stop()

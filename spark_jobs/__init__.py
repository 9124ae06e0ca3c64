"""Spark jobs, one file a job: arguments → session → tasks → staged results. Started by `tidemark.flows.spark_engine`."""

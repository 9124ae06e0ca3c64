"""Spark jobs, one file a job: arguments → session → tasks → staged results. Started by `tidemark.engines.spark`."""

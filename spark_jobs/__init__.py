"""Spark jobs, one file a kind of task. `tidemark.engines.spark` starts them."""

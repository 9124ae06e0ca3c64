"""All that knows Airflow: task callables, retry policy, assets, the DAG factory, the embedded deployment."""

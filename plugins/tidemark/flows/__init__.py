"""Use cases: join rooms, take leases, know neither Airflow nor the terminal."""

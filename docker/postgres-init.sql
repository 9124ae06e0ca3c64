-- Airflow's database is made by the image; the ledger is Tidemark's own, apart from it.
CREATE DATABASE tidemark;

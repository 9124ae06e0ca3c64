"""All that knows Airflow: settings, retries, tasks, DAGs, the embedded deployment.

    settings      the settings that DAGs stand on, or their last sound edition while the file is broken
    schedules     when DAGs run, and the asset that joins sync to load
    retry_policy  who tries again: *soon* here, *later* Airflow, *operator* and *never* nobody
    deployment/   `up` and `down`: a whole Airflow beside the settings
    tasks/        what tasks do: each opens an `App` and calls one verb of a room below
    dags/         the DAGs, made from settings without a database

Airflow is imported here and in the checkout's `dags/` alone. Imports every room below. Airflow decides when; the
ledger says what is still to do. XCom carries ids and counts. Airflow's task state is for display only.
"""

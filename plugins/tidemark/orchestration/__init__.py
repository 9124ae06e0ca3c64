"""Everything that uses Airflow: settings, retries, tasks, DAGs, the embedded deployment.

    settings      the settings behind the DAGs, or their last valid edition while the file is broken
    schedules     when DAGs run, and the assets: what landed, what changed
    connections   asks Airflow for the logins that it keeps
    retry_policy  which errors are retried: *soon* here, *later* by Airflow, *operator* and *never* not at all
    deployment/   `up` and `down`: a whole Airflow next to the settings
    tasks/        the tasks: each opens an `App` and calls one function of a package below
    dags/         the DAGs, made from settings without a database
    operators     a sync, and waiting for data, in DAGs that other people write

Only this package and the checkout's `dags/` import Airflow. Imports every package below. Airflow decides when; the ledger
says what is still to do. XCom carries ids and counts. Airflow's task state is for display only.
"""

"""What each task does: open an `App`, call one verb of a room below, say errors in Airflow's words.

    attempts    how the tries of a link's tasks go, noted in our own ledger
    late_store  a store that is opened at its first use
    perform     what every task does around its verb; progress on Airflow's pages
    sync        the seven tasks of a link's DAG
    receivers   load, merge, verify, housekeep
    cluster     plan, phase one, slots by batches, the end

Imports the rooms below, `orchestration.settings`, `orchestration.schedules`, `orchestration.retry_policy`. A task
may run any number of times, at any time: its verb reads the ledger and does what is still missing. A closed window
is a skip, not a failure.
"""

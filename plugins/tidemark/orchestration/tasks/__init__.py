"""The tasks: each opens an `App`, calls one function of a package below, and reports errors in Airflow's terms.

    late_store  a store that is opened at its first use
    perform     the frame of every task; the tries of a link's tasks, recorded in our own ledger; progress on Airflow's pages
    sync        the seven tasks of a link's DAG
    receivers   load, merge, announce, verify, housekeep
    changes     check, capture, bootstrap, retain, verify of a source
    approval    drops that wait for a person
    replicas    a round of the watch; members that are not in step
    cluster     plan, phase one, slots by batches, the end

Imports the packages below, `orchestration.settings`, `orchestration.schedules`, `orchestration.retry_policy`. A task may run
any number of times, at any time: it reads the ledger and does what is still missing. A closed window is a skip, not a
failure.
"""

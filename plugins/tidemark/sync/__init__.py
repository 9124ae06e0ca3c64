"""Sync an edge site into landings: a link's run of seven steps, resumed from the ledger wherever it stopped.

    recover → select_files → sync_schema → transfer_deletes → transfer_files → finish → cleanup

Enter by `run.run_sync(app, link)`. An orchestrator calls `run.open_run` and then one function a step.

    session  what every step uses: settings of the link, both stores, the ledger under the run's lease
    notes    notes on files that the newest listing skipped, and on files not verified at the source
    schema   the step sync_schema
    start    the run's lease, row and options
    select/  the steps select_files and transfer_deletes: what is sent, what is reported as vanished
    send/    the steps transfer_files, finish, recover and cleanup
    plan     what a sync would do now; changes nothing
    result   what a sync did, read from the ledger
    steps    the seven steps, each with its lease, its row and its stores
    run      a whole sync, and the load of its landings if the receiver is local
    adopt    take over files that an original Sync Tool delivered, or that are at the receiver already

Imports `receiver` (its load and its IoTDB), `transfer`, `app`, `formats`, `ledger`, `settings`, `stores`, `tsfiles`.
Every step may be repeated without harm. The run holds the link's lease across its steps and across processes. A file
that failed all its retries is left out and sent by the next run. Not here: Airflow, and the load of a remote receiver.
"""

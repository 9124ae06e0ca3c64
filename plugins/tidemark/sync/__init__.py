"""Edge to landing: a link's run of seven steps, continued from the ledger wherever it stopped.

    recover → select_files → sync_schema → transfer_deletes → transfer_files → finish → cleanup

Enter by `run.run_sync(app, link)`. An orchestrator calls `run.open_run` and then one function a step.

    session         what every step works with: settings of the link, both stores, the ledger under the run's lease
    notes           what the newest listing passed over; files not verified at the source
    early_listing   a listing that begins while the program still loads
    schema          the step sync_schema
    start           the run's lease, row and options
    select/         the steps select_files and transfer_deletes: what is sent, what is told as vanished
    send/           the steps transfer_files, finish, recover and cleanup
    plan            what a sync would do now; it changes nothing
    result          what a sync did, told from the ledger
    steps           the seven steps, each with its lease, its row and its stores
    run             a whole sync, and the load of its landings where the receiver is here
    adopt           take over what an original Sync Tool delivered, or files that lie at the receiver

Imports `receiver` (its load and its IoTDB), `transfer`, `app`, `formats`, `ledger`, `settings`, `stores`, `tsfiles`.
Every step is done again without harm. The run holds the link's lease across its steps and across processes. A file
that failed all its retries is left out and goes with the next run. Not here: Airflow, and the load of a remote
receiver.
"""

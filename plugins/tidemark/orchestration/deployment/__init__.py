"""A whole Airflow next to the settings: start it, check it, stop it.

Enter by `deployment`: `up` in the foreground, `start` detached, `running_at`, `down`.

    home           Airflow's home: folders, secrets made once, environment; imports no Airflow
    sessions       processes that end together, found by their session
    warm_start     the scheduler imports what tasks import before it forks its workers
    part_starter   the process that imports Airflow once and forks the parts
    parts          the parts as their owner handles them: started, checked, ended
    deployment     start and stop

Imports `errors`, `ledger.processes`, `settings`. `airflow standalone` is not used: SIGTERM does not stop it and it leaves
children behind. The parts end with their owner, however it ends.
"""

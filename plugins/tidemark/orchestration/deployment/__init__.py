"""A whole Airflow beside the settings: start it, ask it, stop it.

Enter by `deployment`: `up` in the foreground, `start` detached, `running`, `down`.

    home           Airflow's home: folders, secrets made once, environment; imports no Airflow
    sessions       processes that end together, found by the session that they lead
    warm_start     before the scheduler forks its workers it imports what tasks import
    part_starter   the process that imports Airflow once and forks the parts
    parts          the parts seen from their owner: started, asked, ended
    deployment     start and stop

Imports `errors`, `ledger.processes`, `settings`. `airflow standalone` is not used: SIGTERM does not stop it and it
leaves children behind. The parts end with their owner, however it ends.
"""

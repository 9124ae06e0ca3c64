"""The DAGs: a link's seven tasks, the receivers' DAGs, the change of a cluster.

Enter by `link.link_dags`, `receivers.load_dag`, `receivers.verify_dag`, `receivers.housekeep_dag`, `cluster.scale_dags`,
`replicas.watch_dags`, `replicas.recover_dags`,
`approve.approve_dags`, `changes.source_dags`, `changes.sink_dags`.

    docs        the text on each DAG's page, and what to do when a task is red
    notices     what is said of a task that failed, and to whom
    frame       what all DAGs have: owner, pool, queue, retries, callbacks
    link        the DAG of a link: the seven steps in a row
    receivers   load, merge and announce, verify, housekeep; a receiver is a map index
    approve     `tidemark_approve`: drops that wait, as Required Actions
    changes     the DAGs of changes: of a source (check, capture, retain, verify), of a sink (deliver)
    cluster     `tidemark_cluster_scale`, by its trigger form
    replicas    `tidemark_replica_watch`, `tidemark_replica_recover`: the groups of a cluster

Imports `orchestration.tasks`, `orchestration.schedules`, `orchestration.retry_policy`, `settings.model`. Parsing uses no
database, and does not import pyspark, paramiko or pandas. Files in `dags/` of the checkout are wiring only.
"""

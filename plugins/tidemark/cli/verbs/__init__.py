"""The verbs, a module a group. Enter by each module's `VERBS`.

    transfer  plan, sync, load, merge, adopt: move files
    checkout  install what the tests need; run pytest, the demo or a benchmark
    prove     status, coverage, verify, why, read: show and prove what is where
    operate   approve, quarantine, owners, ledger: the operator's decisions
    changes   capture changes of MySQL and MariaDB, and read them
    tasks     the actions of `changes` on tasks: consume, rewind, reshard
    cluster   show, check and change a receiver's data nodes; its slots as bars
    replica   the members of each data group, and what their logs have
    setup     init, doctor, demo, test, bench, up, down
    look_up   help, version, completion

Imports `cli.call`, `cli.screen`, `cli.progress` and, inside functions, the packages below.
"""

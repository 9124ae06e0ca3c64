"""The verbs, a module a group.

    transfer   plan, sync, load, merge, adopt: what moves files
    checkout   what the tests need; passing on to pytest, the demo, a benchmark
    prove      status, coverage, verify, why, read: to see and to prove
    operate    approve, quarantine, owners, ledger: the operator's decisions
    cluster    a receiver's data nodes: see them, prove them, change who they are
    setup      init, doctor, demo, test, bench, up, down

A verb is a `cli.call.Verb`: name, summary, an example, its arguments, `run`, and the question that `--yes` answers.
Imports `cli.call`, `cli.screen`, `cli.progress` and, inside functions, the rooms below.
"""

"""Compare a cluster with its partition table, and repair the differences; keep its groups in step.

Enter by `check.check_cluster`, `repair.repair_cluster`, `housekeeping.keep_nodes`, `watch.watch_groups`
and the commands in `operator`.

    problems       a list of problems from the ledger's records and the nodes' answers; pure
    check          read the ledger, ask the nodes, read the ledger again; each node computes its own digests
    housekeeping   late nodes catch up, unneeded files are removed, the cache stays in its bounds
    repair         make again what a check found wrong, from sound copies
    operator       what an operator decides about groups: recover, switch over, resync, force
    watch          a round of the watch: who is away, masters, members that fell out of step

Imports `cluster.slots`, `cluster.nodes`, `cluster.replicas`, `app`, `formats.layout`, `ledger`, `stores.protocol`. A check
changes nothing. A repair removes a file without a record only if the catalog had it once, or if it is the part of a finished
transfer. Any other stays for the operator.
"""

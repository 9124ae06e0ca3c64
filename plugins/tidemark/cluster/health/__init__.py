"""Is a cluster as its table says, and what is done where it is not.

Enter by `check.check_cluster`, `repair.repair_cluster` and `housekeeping.keep_nodes`.

    problems       from what the ledger recorded and the nodes said to a list of problems; pure
    lost_table     a table that rotted in the ledger is taken back from a node
    check          the ledger before and after, the nodes in between; every digest is made where the copy lies
    housekeeping   late nodes catch up, what nobody needs goes, the cache stays in its bounds
    repair         make again what a check found wrong, from what is right

Imports `cluster.slots`, `cluster.nodes`, `cluster.replicas`, `app`, `formats.layout`, `ledger`, `stores.protocol`. A
check changes nothing. A repair removes a file without a record only where the catalog knew it once, or where it is
the part of a transfer that is over. Any other stays for a person.
"""

"""Nodes join and leave: a change is planned, agreed in two phases, migrated, or rolled back.

Enter by `change`: `init_cluster`, `change_nodes`, `roll_back`, `plan_change`; and by `replace.replace_away`.

    plan      the new table, the slots that move, the nodes that must get the table; pure
    phases    phase 1: every node gets the new table, then one transaction puts it in force
    replace   a node that stays away leaves, and others take its places
    change    the request and what it needs to begin; the whole change; the report of what it would move

Imports `cluster.slots`, `cluster.nodes`, `cluster.replicas`, `cluster.migration`, `app`, `ledger`, `settings`,
`stores.address`. One change runs at a time. Until its table is in force it can be rolled back. After that it goes on, and
the reverse is a change of its own.
"""

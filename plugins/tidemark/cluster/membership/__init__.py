"""Nodes join and leave: a change is planned, agreed in two phases, migrated, or rolled back.

Enter by `change`: `init`, `change`, `roll_back`, `plan_change`.

    plan      the new table, what moves, who must know of it; pure
    request   a change as it is asked for, and what it needs to begin
    phases    phase 1: everybody takes the new table, one transaction puts it in force
    change    all of it, and what a change would move

Imports `cluster.slots`, `cluster.nodes`, `cluster.migration`, `app`, `ledger`, `settings`, `stores.address`. One
change at a time. Until its table is in force it can be rolled back. After that it goes on, and the reverse is a
change of its own.
"""

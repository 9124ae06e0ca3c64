"""Slots move: the new members of a group fetch what they lack, acknowledge it, and the old ones delete.

Enter by `migrate.migrate_slots`, phase 2 of a change. `plan.plan_moves` decides what moves.

    plan        which member fetches which slots from which, and which delete in the end; pure
    inventory   the files of a receiver's catalog by slot
    send_task   one task: send files from one store to another, in the process that an engine chooses
    cleanup     copies that were given up: after the grace their bytes are removed, then their rows
    pull        bring one member of a new group what it lacks, by this process or by tasks of Spark
    migrate     move slots in batches, under the lease `cluster:<receiver>`; put and drop the schema of slots

Imports `cluster.slots`, `cluster.nodes`, `cluster.replicas`, `app`, `engines`, `ledger`, `stores`, `transfer`. Old copies
are removed only after every new member acknowledged by its name and epoch. Any call continues from the ledger.
"""

"""Slots move: the new members of a group fetch what they lack, acknowledge it, and the old ones delete.

Enter by `migrate.migrate_slots`, phase 2 of a change. `plan.plan` decides who fetches what from whom.

    plan        who fetches which slots from whom, and who deletes in the end; pure
    inventory   what of a receiver's catalog belongs to which slot
    send_task   one task: files of one store to another, wherever an engine runs it
    cleanup     copies that nobody counts on: after the grace their bytes go, then their rows
    send        this process sends, or tasks of Spark
    pull        one member of a new group is brought what it lacks; what moves now, for who shows it
    migrate     batch by batch, under the lease `cluster:<receiver>`; the schema of slots

Imports `cluster.slots`, `cluster.nodes`, `cluster.replicas`, `app`, `engines`, `ledger`, `stores`, `transfer`. Old
copies go only after every new member acknowledged by its name and epoch. Any call goes on from the ledger.
"""

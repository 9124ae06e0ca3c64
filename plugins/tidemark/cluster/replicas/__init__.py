"""Files go to the nodes of their slots before they are visible; late nodes get what they missed.

Enter by `forward.make_visible`, `catch_up.catch_up`, `recover.recover_node` and `cache.recall_files`, which brings files
back to the receiver.

    core/      the rules of roles, epochs and logs; pure (docs/replication.md)
    log        the log of a group in its member's folder: compare and append, read, seal
    records/   the operations that a log has, what a transaction changes, and the catalog that logs tell
    members    the logs of one group's members together: an append at a quorum, a member that is behind
    promote    a group gets a master that has everything; what was in doubt gets an outcome
    commit     every change of a catalog: records at a quorum of each group, then the ledger's transaction
    plan       what goes to which node, which group lacks a quorum, who is late; pure
    deliver    files and their schema brought to nodes; the copies there are recorded
    cache      the receiver's own copies: fetched when read, evicted when there are many
    forward    propose, deliver, quorum, record, commit
    recover    a member back into step: its files by the catalog, then its log by the master's
    catch_up   a late member gets every committed operation above what it has applied

Imports `cluster.slots`, `cluster.nodes`, `app`, `formats.layout`, `ledger`, `stores.protocol`, `transfer.engine`. A quorum
of each group holds what the catalog shows, by digest. If the table is swapped meanwhile, the proposed operations are
withdrawn and the files routed anew. Bytes already at the right nodes are not sent again.
"""

"""Files go to the nodes of their slots before they are visible; late nodes get what they missed.

Enter by `forward.make_visible`, `catch_up.catch_up` and `cache.recall_files`, which brings files back to the receiver.

    plan       what goes where, who has enough of it, who is late; pure
    deliver    files and their schema brought to nodes; what lies there is written down
    cache      the receiver's own copies: fetched when somebody reads, given up when there are many
    forward    propose, deliver, quorum, commit
    catch_up   a late member gets every committed operation above what it has applied

Imports `cluster.slots`, `cluster.nodes`, `app`, `formats.layout`, `ledger`, `stores.protocol`, `transfer.engine`. A
quorum of each group holds what the catalog shows, by digest. A table that is swapped in between withdraws what was
proposed; it is routed anew, and bytes that lie at the right nodes are not sent again.
"""

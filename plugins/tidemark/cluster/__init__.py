"""A receiver's data kept at several data nodes: which node holds which files, how files get there, how nodes join and leave.

It has no module of its own. The folders, from the bottom up:

    slots/        the decisions: hash, partition table, routing, balance; pure
    nodes/        a node's folder and store; the cluster as one process has it open
    replicas/     files go to their nodes before they are visible; late nodes catch up; the receiver's cache
    migration/    slots go from the old members of a group to the new ones
    health/       check, repair, housekeeping
    membership/   the change of the nodes: plan, two phases, roll back

Enter by `nodes.cluster.open_cluster(app, receiver)`; it gives None if the receiver alone has its data. Others use `nodes`,
`replicas.forward`, `replicas.catch_up`, `replicas.cache`, and the commands in `membership.change` and `health`. Imports
`app`, `engines`, `formats`, `ledger`, `stores`, `transfer`.

A file becomes visible only when a quorum of each of its groups holds it, proved by digest. Not guaranteed: that all members
hold it; a late one catches up. A file is not cut: it goes whole to the nodes of all its slots.
"""

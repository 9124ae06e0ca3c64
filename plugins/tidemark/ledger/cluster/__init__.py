"""The tables of a cluster: its nodes, which group holds which slot, the copies at nodes, and the moves.

    tables      the partition table by epochs, the nodes and the changes of both; a swap is compare-and-swap
    operations  a group's versioned operations, and the version each member has applied
    group_logs  who may append to a group's log, what of it is settled, which slots it tells of, and when it was read whole
    node_watch  how often in a row each node did not answer
    recoveries  how far the recovery of each member is, and which are at work
    copies      the copies at each node, and the last use of files in the receiver's cache
    moves       moves between nodes: slots, acknowledgements, states

Every function works in the caller's transaction and writes rows in one order, so that two writers do not deadlock. Imports
`ledger.sql` and `errors`. `tables.require_epoch` is the fence: a plan on a table that is not in force gets StaleEpochError.
`cluster` writes here. Tables: `sql/0008_cluster`, `sql/0017_group_log`, `sql/0018_group_cover`,
`sql/0020_node_watch`, `sql/0023_group_recovery`, `sql/0026_log_reading`.
"""

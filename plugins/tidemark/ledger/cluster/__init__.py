"""The tables of a cluster: which nodes there are, which group holds which slot, which copies lie where, what moves.

    tables      the partition table by epochs, the nodes and the changes of both; a swap is compare-and-swap
    operations  a group's versioned operations and how far each member has come
    copies      what each node holds, and when files of the receiver's cache were last asked for
    moves       what moves between nodes: slots, acknowledgements, states

Every function works in the caller's transaction; rows are taken in one order, so that two writers wait one way
round. Imports `ledger.sql` and `errors`. `tables.require_epoch` is the fence: whoever planned on a table that is not
in force gets StaleEpochError. `cluster` writes here. Tables: `sql/0008_cluster`.
"""

"""The slot, group and nodes of a file: pure decisions over values.

    hash_ring  the hash from database and time partition to a slot; the ring of nodes and the groups on it
    states     the states of a slot at a node while it moves
    balance    which node gets which slot when nodes join or leave: as even as their weights allow, with fewest moves
    table      the partition table with its epoch, as a value and as bytes; `holds_slot`: does a node hold a slot
    routing    from files to slots, groups and nodes

Enter by `table.PartitionTable`, `routing.wanted_copies` and `balance.balance_of`. Imports `errors` and
`formats.json_stream`. No I/O and no clock. The same table, nodes and sizes give the same answer everywhere. A group
is computed, not stored: the header of a slot and the ring determine its members.
"""

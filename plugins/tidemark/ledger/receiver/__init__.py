"""The rows of the receiver's side: what came, what readers see, what was refused, what stands alone.

    landings   what manifests told: sites, landings in their order, each site's inventory, vanished files
    catalog    the data files that readers see; a row is live, retired or reclaimed
    refusals   owners of devices, files refused for them, files in quarantine
    schemas    series that the sites declared
    iotdb      what an IoTDB was given
    rebuild    what rebuilding a ledger needs; whose folder it is, and how many changes of it the ledger holds
    retention  what housekeeping changes
    settled    merged files that stand alone, and what they wait for
    merges     merged files: `publish`, `unmerge` (withdraw), `settle` (stand alone)

Every function works in the caller's transaction, so that a landing or a merge is one step for every reader. Imports
`ledger.journal` and `ledger.sql`. Nothing here is derived from the rows of the link's side: the sender's Tidemark
may be another machine. Written by `receiver`, and by `operations` for decisions, housekeeping and rebuild.
"""

"""The rows of the receiver's side: landings, the catalog, refusals, merges, settled files.

    landings   records of manifests: sites, landings in their order, each site's inventory, vanished files
    catalog    the data files that readers see; a row is live, retired or reclaimed
    refusals   owners of devices, files refused for them, files in quarantine
    schemas    series that the sites declared
    iotdb      the files that an IoTDB has
    rebuild    rows for rebuilding a ledger; the mark of a receiver's folder and the number of its changes
    settled    merged files that stand alone, and the sources they wait for
    touched    which of these rows a transaction writes, for the logs of data groups
    merges     merged files: `publish_merged`, `unmerge_files` (withdraw), `mark_settled` (stand alone)

Every function works in the caller's transaction, so that a landing or a merge is one step for every reader. Imports
`ledger.journal` and `ledger.sql`. Nothing here is derived from the rows of the link's side: the sender's Tidemark may be
another machine. Written by `receiver`, and by `operations` for decisions, housekeeping and rebuild.
"""

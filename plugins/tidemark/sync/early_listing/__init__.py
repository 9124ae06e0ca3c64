"""List a site while the rest of the program still loads.

A listing of a million files takes seconds. If a command needs it in any case, it begins before our modules are loaded
and the ledger is opened. Enter by `begin.begin_listing`.

The listing is older than the run's lease, so nothing is decided by it alone. It counts as partial: the selection lists
every folder again in which something differs. An error of the early listing is reported when the store is opened.

    arriving   the listing while it arrives, from a far end or from a child process at a local site
    store      `PrefetchedStore`, which answers the first request with it
    begin      start the listing in the background; importing it loads little
"""

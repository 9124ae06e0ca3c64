"""A listing of a site that begins while the rest of the program is still being loaded.

A listing of a million files takes a second of the far end's time and seconds of a processor's. Loading our own
modules and opening the ledger takes half a second of ours. Both at once, where a command will want the listing in
any case (`begin`). At a local site a child makes it, as the far end of an SSH connection would
(`stores.agent.server`). It is worked on while it is still arriving (`ArrivingFrames`).

It is older than the run's lease, so it must decide nothing by itself, and does not: it counts as partial, and
whoever uses it lists again, more closely, every folder in which something differs. The wrapped store
(`PrefetchedStore`) answers the same question once with it; everything else goes to the store. What went wrong early is
told when the store is opened.

    arriving   the listing while it is on its way: from a far end, or from a child at a local site
    store      `PrefetchedStore`, which answers the first question with it
    begin      the door: connect and ask, beside all else; importing it costs nothing
"""

"""A source as its commands, tasks and reports see it.

Enter by `source` and `repair`: what `./tidemark changes …` does with a source of the settings.

    begin   where a new store begins, and at which server
    source  settings, store and lease of a source; capture, bootstrap, read, find, retain
    repair  go on behind a gap, and read its tables anew
    doctor  a source examined: its server, its store
    show    what is known of a source: lag, headroom, gaps, tasks
    verify  is every transaction of a source in its store, once

Knows settings and ledger. Imports the folders beside it; none of them imports this one.
"""

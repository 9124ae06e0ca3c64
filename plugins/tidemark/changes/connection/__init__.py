"""Reach a server of MySQL or MariaDB as a replica does, and read its binary logs as they are; or the files of a dead one.

Enter by `dump.open_dump` with where to begin: it gives raw events, for `binlog.reader.EventDecoder`. `files.open_files`
gives the same from files. `login.open_server` logs in and asks questions, `facts.read_facts` those of a capture.

    model    what all share: settings of a source, where a dump begins, a raw event
    packets  packets of the protocol on a socket that is ours; requests of a replica; what a refusal means
    login    an address, TLS, a login by PyMySQL, questions in SQL
    results  the rows of a long answer, not value by value
    facts    what a server says of itself, as one value
    dump     the stream of a server's events
    files    the same from files

Imports `errors`, `changes.binlog` and PyMySQL. Nothing is written at a server. What a server sends is believed in no length
and no order; that its rows are true is. Nothing here tries again: an UnreachableError says that the caller may.
"""

"""May a server be trusted with the changes of its tables, and for how many hours does it still hold them?

Enter by `answers.ask_server`, then `rules.judge` and `headroom.measure_headroom`. Answers are asked for once, as one frozen
value; what they mean is decided without a server.

    answers   what a server and its tables say, as one value
    headroom  the hours until the server purges what the store does not have; pure
    rules     what is wrong, and the SQL that mends it; pure
    patterns  patterns of a source that mean no table of its server
    gaps      stretches that a server purged before they were captured: on record, passed, closed
    resume    the server's events from where a store ends on, where it is proved that it has what the store has

Imports `changes.binlog`, `changes.connection`, `errors`; `gaps` and `resume` also `changes.capture` and `changes.store`.
Knows no settings and no ledger. Changes nothing at a server.
"""

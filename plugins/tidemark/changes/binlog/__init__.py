"""Decode binary logs of MySQL 5.1 to 9.x and MariaDB 5.5 to 11.x. Every value is exact, or the log is refused by name.

Enter by `reader.read_events` with an open file, or by `reader.EventDecoder` with one event after the other. An event's
body is one of the classes of `events`, a `tables.Table` or a `rows.Rows`. `rows.decode_rows` decodes the rows one
by one, `batches.decode_batches` by column.

    cursor       read numbers and strings out of bytes with every bound checked; decompress with a bound
    gtid_sets    sets of MySQL's GTIDs, positions of MariaDB's; pure
    scalars      decimals, dates and times as text
    charsets     from the number of a collation to text
    json_values  MySQL's binary JSON as the text that the server prints; partial updates of it
    layout       magic, event header, format description, checksum
    tables       TABLE_MAP with its optional metadata
    values       one value of each column type
    rows         row events, and the images in them
    batches      the rows of an event as Arrow arrays, compiled or in numpy
    events       all other events
    reader       from bytes to events; what a log remembers between two events

Imports `errors` and `native` alone. Nothing here opens a file. A table that a log does not describe wholly
(`Table.unknown`) is decoded raw on demand only. Refused: logs of MySQL before 5.1, pre-GA row events, encrypted logs,
any event of an unknown type without the ignorable flag, DECIMAL of MySQL 4, typed arrays. Not known: MariaDB's times
with fractions from before 10.1, which a log does not tell from those without.
"""

"""Parse the bytes of a TsFile from its head to its tail, with every bound checked.

Enter by `footer.read_footer` and `structure.check_structure`.

    bytes       a cursor over bytes, and a file's bytes by position; garbage raises a CorruptionError with its place
    index       the metadata index: a tree from devices to measurements
    series      metadata of one series: type, points, interval, places of its chunks
    chunks      headers of chunks and pages
    footer      head, tail and file metadata of V3 and V4
    structure   check that a file is whole: head, tail, metadata, index, every chunk header

Imports `tsfiles.points.codes`, `errors` and `untrusted_files`. No page is decoded here. TsFiles have no checksum, so
`structure` finds truncation and mixed-up parts, but not a changed byte of a page. The digest made at the site does.
"""

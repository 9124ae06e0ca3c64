"""The files that IoTDB keeps beside TsFiles: what they say, in all versions.

Enter by `resource.read_extent`, `mods.parse_mods`, `schema_log.decode_log`.

    resource     `.resource`: which devices, from when to when
    mods         `.mods` and `.mods2`: deletions; an entry applies to its own TsFile only
    schema_log   `mlog.txt` and `mlog.bin`: series that were created and deleted

Imports `tsfiles.devices`, `tsfiles.layout.bytes` and `tsfiles.points.codes`. Torn last records are left for the next
reading. What a `.resource` says is planning metadata: it is never trusted more than the file.
"""

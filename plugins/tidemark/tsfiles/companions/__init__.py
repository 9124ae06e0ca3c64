"""Parse the files that IoTDB keeps next to TsFiles, in all versions.

Enter by `resource.read_extent`, `mods.parse_mods`, `schema_log.decode_log`.

    resource     `.resource`: which devices, from when to when
    mods         `.mods` and `.mods2`: deletions; an entry applies to its own TsFile only
    schema_log   `mlog.txt` and `mlog.bin`: series that were created and deleted

Imports `tsfiles.devices`, `tsfiles.layout.bytes` and `tsfiles.points.codes`. A torn last record is left for the next
reading. A `.resource` is planning metadata: it is never trusted more than its TsFile.
"""

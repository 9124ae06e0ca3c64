"""Merge overlapping files of a site into merged files, which readers see instead.

Enter by `merge.merge(app, receiver)`.

    device    one device: what is copied, what is decoded, which point wins
    task      write the points of some devices as new TsFiles in staging, if one file can hold them all; runs in a child
    plan      which files are merged together, in which tasks; pure
    batch     leases, results, and catalog rows of the outputs
    merge     plan, tasks, publish, one transaction per group

Imports `receiver.load` (check, examine), `receiver.windows`, `receiver.session`, `cluster`, `app`, `engines`, `formats`,
`ledger`, `stores`, `tsfiles`. Readers get the same points before, during and after a merge. Each merge records in = out +
overwritten + deleted. A null never overwrites a value. Files that cannot be merged without changing a value or a type are
reported and stay.
"""

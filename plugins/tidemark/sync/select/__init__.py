"""Select what a run sends and what it reports as vanished: the steps select_files and transfer_deletes.

Enter by `select_files.select_files`, `select_files.transfer_deletes`, and `select_files.make_selection` for a plan.

    diff          what changed at the site: a merge of two streams sorted by path; pure
    snapshot      hard links of the files to send: all of them or none
    vanished      which files may hold a vanished file's points; may its deletion be reported (`judge_vanished`); pure
    compacting    partitions in which a compaction runs; pure
    choose        which changed files are sent, which vanished files are reported; pure
    owners        devices to send that are another site's at the receiver
    quarantine    files whose bytes did not arrive unchanged, and the operator's decisions on them
    select_files  list, decide, pin, record

`vanished.judge_vanished` guards deletions. It asks three things: was the folder listed, does the site seem lost, have
more files vanished than the link's limits allow. Held deletions wait for `approve`; transfers go on. The recorded
selection is final: a rerun never decides again.

Imports `sync.session`, `formats`, `ledger`, `settings`, `stores`, `tsfiles`.
"""

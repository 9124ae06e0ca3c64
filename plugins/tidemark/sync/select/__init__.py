"""What a run sends and what it tells as vanished: the steps select_files and transfer_deletes.

Enter by `select_files.select_files`, `select_files.transfer_deletes`, and `select_files.make_selection` for a plan.

    diff          what changed at the site: a merge of two streams sorted by path; pure
    snapshot      hard links of what is sent: all of them or none
    vanished      in which files vanished ones may live on; may they be told at all (`judge`); pure
    compacting    partitions in which a compaction is at work; pure
    choose        which changed files travel, which vanished ones are told; pure
    quarantine    files whose bytes never arrived as they are, and the operator's decisions on them
    select_files  list, decide, pin, record

The rule that guards deletions is `vanished.judge_vanished`. It asks three things: was the folder listed, does the site seem
lost, are more files gone than the link's limits. What it holds waits for `approve`; transfers go on. What is
recorded is the run's selection for good: a rerun never decides again.

Imports `sync.session`, `formats`, `ledger`, `settings`, `stores`, `tsfiles`.
"""

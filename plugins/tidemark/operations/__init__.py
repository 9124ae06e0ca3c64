"""An operator's work across subjects: decisions, housekeeping, doctor, rebuild of a lost ledger.

    decisions      quarantine, owners, approval; each written to the audit table with its effect
    consequences   what a decision would do, in numbers
    housekeeping   old merged files stand alone, unread files are reclaimed, old events are trimmed
    replicas       the members of each data group have the same files, by what lies on their disks
    survey         what an IoTDB left in a folder: version, folders, time unit, partition interval
    new_sites      sites that somebody names for the first time: how they are reached, what is found there
    doctor/        everything that a run needs, checked in advance
    rebuild/       a new ledger from the receivers' files; a copy and an upgrade of a ledger

Enter by `decisions` (`quarantine_release`, `owners_transfer`, `approve_run` …), `housekeeping.housekeep`,
`new_sites.look_at_sites`, `survey.survey_site`, `doctor.doctor.doctor` and `rebuild.rebuild` (`backup_ledger`,
`upgrade_ledger`, `rebuild_ledger`).

Imports every package below. Housekeeping is ordered so that no reader loses bytes: a file is retired in the ledger, its
bytes are removed after a grace, then it is reclaimed in the ledger. The next housekeeping continues one that died.
"""

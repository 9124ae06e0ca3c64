"""What an operator does across subjects: decisions, housekeeping, doctor, rebuild of a lost ledger.

    decisions      quarantine, owners, approval; each written to the audit table with its effect
    housekeeping   old merged files stand alone, files that nobody reads are reclaimed, old events are trimmed
    doctor/        everything a run needs, checked before a run needs it
    rebuild/       a new ledger from what lies at the receivers; a copy and an upgrade of a ledger

Enter by `decisions` (`quarantine_release`, `owners_transfer`, `approve` …), `housekeeping.housekeep`,
`doctor.doctor.doctor` and `rebuild.ledger` (`backup`, `upgrade`, `rebuild`).

Imports every room below. Housekeeping is ordered so that no reader loses bytes: a file is retired in the ledger, its
bytes go after a grace, then it is reclaimed in the ledger. A housekeeping that died is continued by the next one.
"""

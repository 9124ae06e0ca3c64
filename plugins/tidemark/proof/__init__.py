"""Status, coverage, verify, why."""

-- One run, with its link. Parameters: run.
SELECT r.*, l.guard, l.guard_run, l.receiver, l.site_id FROM run r JOIN link l ON l.link = r.link WHERE r.run_id = :run

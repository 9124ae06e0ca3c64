-- One run, with its link. Parameters: run.
SELECT r.*, (SELECT MAX(external) FROM run_alias a WHERE a.run_id = r.run_id) AS external,
       l.guard, l.guard_run, l.receiver, l.site_id FROM run r JOIN link l ON l.link = r.link WHERE r.run_id = :run

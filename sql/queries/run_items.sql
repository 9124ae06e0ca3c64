-- The items of a run, counted. Parameters: run.
SELECT action, state, COUNT(*) AS files, SUM(size) AS bytes, MIN(reason) AS reason FROM run_item
WHERE run_id = :run GROUP BY action, state ORDER BY action, state

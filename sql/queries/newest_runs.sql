-- The newest runs, of one link or (link '') of all, each with its landings and how many of them the receiver has loaded.
WITH newest AS (
    SELECT run_id, link, state, started, ended, files, bytes, sent_bytes, dropped, pending, error, hint, worked
    FROM run
    WHERE :link = '' OR link = :link
    ORDER BY started DESC, run_id DESC
    LIMIT :most
)
SELECT n.run_id, n.link, n.state, n.started, n.ended, n.files, n.bytes, n.sent_bytes, n.dropped, n.pending, n.error, n.hint,
       n.worked, a.external, COALESCE(s.landings, 0) AS landings, COALESCE(s.answered, 0) AS answered
FROM newest n
LEFT JOIN (
    -- a receiver of this ledger may have loaded what the sender has read no receipt of yet
    SELECT run_id, COUNT(*) AS landings,
           SUM(CASE WHEN state = 'answered' OR landing IN (SELECT landing FROM landing WHERE state = 'loaded')
                    THEN 1 ELSE 0 END) AS answered
    FROM sent_landing
    WHERE run_id IN (SELECT run_id FROM newest)
    GROUP BY run_id
) s ON s.run_id = n.run_id
LEFT JOIN (
    SELECT run_id, MAX(external) AS external FROM run_alias WHERE run_id IN (SELECT run_id FROM newest) GROUP BY run_id
) a ON a.run_id = n.run_id
ORDER BY n.started DESC, n.run_id DESC

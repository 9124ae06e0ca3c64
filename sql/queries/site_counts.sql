-- What waits at a receiver, one row a site.
SELECT n.receiver, n.site_id,
       (SELECT COUNT(*) FROM quarantine q WHERE q.receiver = n.receiver AND q.site_id = n.site_id AND q.state = 'held')
           AS quarantined,
       (SELECT COUNT(*) FROM refusal f WHERE f.receiver = n.receiver AND f.site_id = n.site_id AND f.state = 'refused')
           AS refused,
       (SELECT COUNT(*) FROM pending_drop d WHERE d.receiver = n.receiver AND d.site_id = n.site_id AND d.state <> 'done')
           AS pending_drops,
       (SELECT COUNT(*) FROM pending_drop d WHERE d.receiver = n.receiver AND d.site_id = n.site_id AND d.state = 'waiting')
           AS asking,
       (SELECT MIN(d.landing) FROM pending_drop d
         WHERE d.receiver = n.receiver AND d.site_id = n.site_id AND d.state = 'waiting') AS asking_landing,
       (SELECT MIN(d.reason) FROM pending_drop d
         WHERE d.receiver = n.receiver AND d.site_id = n.site_id AND d.state = 'waiting') AS asking_reason,
       (SELECT MAX(a.waits) FROM merge_account a JOIN catalog_file m ON m.file_id = a.merged_id
         WHERE m.receiver = n.receiver AND m.site_id = n.site_id AND m.state = 'live') AS waits,
       SUM(CASE WHEN n.state IN ('found', 'loading') THEN 1 ELSE 0 END) AS unloaded,
       SUM(CASE WHEN n.state = 'waiting' THEN 1 ELSE 0 END) AS behind_gap,
       SUM(CASE WHEN n.state = 'rejected' THEN 1 ELSE 0 END) AS rejected,
       MAX(CASE WHEN n.state IN ('waiting', 'rejected') THEN n.reason END) AS reason
FROM landing n
GROUP BY n.receiver, n.site_id
ORDER BY n.receiver, n.site_id

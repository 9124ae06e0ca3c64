-- What every link knows of one path of a site: its row, why it was passed over, its place in the newest run that met it.
-- Parameters: site (UUID), path.
SELECT l.link, l.receiver, f.state, f.size, f.generation, f.landing, f.reason, f.first_seen, f.changed,
       k.reason AS skipped, k.since AS skipped_since,
       i.run_id, i.action, i.state AS item_state, i.reason AS item_reason, i.covered_by, r.state AS run_state,
       n.state AS landing_state, n.sequence, u.since AS unverified_since
FROM link l
LEFT JOIN file f ON f.link = l.link AND f.path = :path
LEFT JOIN skipped_file k ON k.link = l.link AND k.path = :path
LEFT JOIN run_item i ON i.path = :path AND i.run_id = (
    SELECT MAX(j.run_id) FROM run_item j JOIN run q ON q.run_id = j.run_id WHERE j.path = :path AND q.link = l.link)
LEFT JOIN run r ON r.run_id = i.run_id
LEFT JOIN sent_landing n ON n.landing = f.landing
LEFT JOIN unverified u ON u.link = l.link AND u.path = :path
WHERE l.site_id = :site AND (f.path IS NOT NULL OR k.path IS NOT NULL OR i.path IS NOT NULL)
ORDER BY l.link

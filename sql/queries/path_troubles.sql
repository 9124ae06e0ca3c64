-- Quarantine, refusals and pending drops of one path of a site, newest first. Parameters: site (UUID), path.
SELECT 'quarantine' AS what, receiver, quarantine_id AS id, generation, landing, reason, '' AS device, '' AS owner_site,
       0.0 AS owner_since, '[]' AS covered_by, state, at
FROM quarantine WHERE site_id = :site AND path = :path AND state IN ('held', 'dropped')
UNION ALL
SELECT 'refusal', receiver, refusal_id, generation, landing, '', device, owner_site, owner_since, '[]', state, at
FROM refusal WHERE site_id = :site AND path = :path AND state IN ('refused', 'dismissed')
UNION ALL
SELECT kind, receiver, 0, generation, landing, COALESCE(reason, ''), '', '', 0.0, covered_by, state, at
FROM pending_drop WHERE site_id = :site AND path = :path
ORDER BY at DESC

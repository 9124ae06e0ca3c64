-- Why paths of a site are not in the catalog, the last word first to be believed. Parameters: receiver, site (UUID).
SELECT path, generation, 'in quarantine: ' || reason AS why, at
FROM quarantine WHERE receiver = :receiver AND site_id = :site AND state = 'held'
UNION ALL
SELECT path, generation, 'given up by the operator: ' || reason, at
FROM quarantine WHERE receiver = :receiver AND site_id = :site AND state = 'dropped'
UNION ALL
SELECT path, generation, 'given up by the operator: device ' || device || ' belongs to site ' || owner_site, at
FROM refusal WHERE receiver = :receiver AND site_id = :site AND state = 'dismissed'
UNION ALL
SELECT path, generation, 'refused: device ' || device || ' belongs to site ' || owner_site AS why, at
FROM refusal WHERE receiver = :receiver AND site_id = :site AND state = 'refused'
ORDER BY at

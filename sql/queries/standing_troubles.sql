-- What a receiver keeps out of the catalog of a site, however long ago it came. Parameters: receiver, site (UUID).
SELECT 'refused' AS what, landing, path, 'device ' || device || ' belongs to another site: ' || owner_site AS reason, 21 AS kind
FROM refusal WHERE receiver = :receiver AND site_id = :site AND state = 'refused'
UNION ALL
SELECT 'quarantined', landing, path, reason, error_kind
FROM quarantine WHERE receiver = :receiver AND site_id = :site AND state = 'held'
ORDER BY path

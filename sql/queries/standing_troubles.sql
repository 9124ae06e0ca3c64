-- What a receiver keeps out of the catalog of a site, however long ago it came. Parameters: receiver, site (UUID).
-- `kind`: the load that refused a file ended with 21; a sync that finds it still refused is partial, 23.
SELECT 'refused' AS what, landing, path, 'device ' || device || ' belongs to another site: ' || owner_site AS reason, 23 AS kind
FROM refusal WHERE receiver = :receiver AND site_id = :site AND state = 'refused'
UNION ALL
SELECT 'quarantined', landing, path, reason, error_kind
FROM quarantine WHERE receiver = :receiver AND site_id = :site AND state = 'held'
ORDER BY path

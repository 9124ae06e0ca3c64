-- Kept files of a site that the operator gave up, for their bytes here had rotted. Parameters: receiver, site (UUID).
SELECT path, generation, reason
FROM pending_drop
WHERE receiver = :receiver AND site_id = :site AND state = 'done' AND reason LIKE 'given up by the operator: %'
ORDER BY path, generation

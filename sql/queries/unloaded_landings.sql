-- Landings of a site that are not loaded, in sequence. Parameters: receiver, site (UUID).
SELECT landing, sequence, previous, state, reason
FROM landing
WHERE receiver = :receiver AND site_id = :site AND state <> 'loaded'
ORDER BY sequence, landing

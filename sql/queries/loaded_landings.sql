-- Landings of a site that are loaded, in sequence. Parameters: receiver, site (UUID).
SELECT landing, sequence, loaded, files, bytes, manifest_sha256, folder_mtime
FROM landing
WHERE receiver = :receiver AND site_id = :site AND state = 'loaded'
ORDER BY sequence

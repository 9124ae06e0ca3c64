-- The files that readers of a receiver read, with what was recorded of their bytes. Parameters: receiver.
SELECT file_id, location, size, sha256, mods_location, mods_sha256
FROM catalog_file
WHERE receiver = :receiver AND state = 'live' AND visible = 1
ORDER BY location

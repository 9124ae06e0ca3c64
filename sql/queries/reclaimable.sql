-- Retired files whose grace is over, and whose place no other file needs. Parameters: receiver, before (seconds since 1970).
SELECT f.file_id, f.site_id, f.path, f.location, f.mods_location, f.size
FROM catalog_file f
WHERE f.receiver = :receiver AND f.state = 'retired' AND f.retired < :before
ORDER BY f.file_id

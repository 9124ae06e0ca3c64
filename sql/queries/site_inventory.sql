-- What a site has, by the newest manifests that were loaded. Parameters: receiver, site (UUID).
SELECT path, size, mtime, generation, extent, landing
FROM inventory
WHERE receiver = :receiver AND site_id = :site AND live = 1
ORDER BY path

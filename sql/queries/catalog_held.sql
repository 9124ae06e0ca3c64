-- Every file the catalog has or had of a site. Parameters: receiver, site (UUID).
SELECT file_id, role, path, generation, size, sha256, mods_location, mods_sha256, state, visible, location, points, marked
FROM catalog_file
WHERE receiver = :receiver AND site_id = :site
ORDER BY file_id

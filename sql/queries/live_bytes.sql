-- Every data file a receiver keeps, read or behind a merged file, with what was recorded of it. Parameters: receiver.
SELECT file_id, site_id, role, path, generation, location, size, sha256, mods_location, mods_sha256, visible, database_name,
       rank_unsequence
FROM catalog_file WHERE receiver = :receiver AND state = 'live' ORDER BY file_id

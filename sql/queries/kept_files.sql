-- Files that are gone at their site and kept: they rank below all that the site has. Parameters: receiver.
SELECT file_id, site_id, path, generation, points, state, visible
FROM catalog_file
WHERE receiver = :receiver AND role = 'source' AND state = 'live' AND rank_unsequence < 0
ORDER BY site_id, path, generation

-- One source path in the catalog, newest generation first. Parameters: site (UUID), path.
SELECT file_id, receiver, generation, location, size, sha256, state, visible, marked, rank_unsequence, undecodable, landing, created, retired
FROM catalog_file WHERE site_id = :site AND path = :path AND role = 'source'
ORDER BY generation DESC, file_id DESC

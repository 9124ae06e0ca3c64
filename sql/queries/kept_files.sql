-- Files that are gone at their site and that readers may still see, by path and generation: those that are live rank below all that
-- the site has; the points of the others stand in a merged file that settled. mixed: 1 where that one also holds points of files
-- that the site has, so that it ranks as they do. Parameters: receiver.
SELECT file_id, site_id, path, generation, points, 0 AS mixed
FROM catalog_file
WHERE receiver = :receiver AND role = 'source' AND state = 'live' AND rank_unsequence < 0
UNION ALL
SELECT f.file_id, f.site_id, f.path, f.generation, f.points, MAX(CASE WHEN m.rank_unsequence < 0 THEN 0 ELSE 1 END)
FROM catalog_file f
JOIN lineage l ON l.source_id = f.file_id
JOIN catalog_file m ON m.file_id = l.merged_id AND m.state = 'live'
WHERE f.receiver = :receiver AND f.role = 'source' AND f.state <> 'live' AND NOT EXISTS (
    SELECT 1 FROM inventory i WHERE i.receiver = f.receiver AND i.site_id = f.site_id AND i.path = f.path AND i.live = 1
)
GROUP BY f.file_id, f.site_id, f.path, f.generation, f.points
ORDER BY site_id, path, generation

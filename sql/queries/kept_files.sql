-- Files that are gone at their site and that readers may still see, by path and generation: those that are live rank below all that
-- the site has; the points of the others stand in a merged file that settled. mixed: 1 where that one also holds points of files
-- that the site has, so that it ranks as they do. CROSS JOIN: in this order, from the few merged files that may hold such points.
-- Parameters: receiver, mixed_only (1: no other ones).
SELECT file_id, site_id, path, generation, points, 0 AS mixed
FROM catalog_file
WHERE receiver = :receiver AND role = 'source' AND state = 'live' AND rank_unsequence < 0 AND :mixed_only = 0
UNION ALL
SELECT f.file_id, f.site_id, f.path, f.generation, f.points, MAX(CASE WHEN m.rank_unsequence < 0 THEN 0 ELSE 1 END)
FROM merge_account a CROSS JOIN catalog_file m CROSS JOIN lineage l CROSS JOIN catalog_file f
WHERE a.gone = 1 AND m.file_id = a.merged_id AND m.receiver = :receiver AND m.state = 'live'
AND (:mixed_only = 0 OR m.rank_unsequence >= 0)
AND l.merged_id = m.file_id AND f.file_id = l.source_id AND f.role = 'source' AND f.state <> 'live' AND NOT EXISTS (
    SELECT 1 FROM inventory i WHERE i.receiver = f.receiver AND i.site_id = f.site_id AND i.path = f.path AND i.live = 1
)
GROUP BY f.file_id, f.site_id, f.path, f.generation, f.points
ORDER BY site_id, path, generation

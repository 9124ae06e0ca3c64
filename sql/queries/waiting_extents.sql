-- Files a link has seen and no landing has acknowledged, with the times they cover. Parameters: link.
SELECT f.path, f.size, f.generation, COALESCE(f.reason, '') AS reason, COALESCE(e.extent, '[]') AS extent
FROM file f LEFT JOIN file_extent e ON e.link = f.link AND e.path = f.path
WHERE f.link = :link AND f.state = 'waiting'
ORDER BY f.path

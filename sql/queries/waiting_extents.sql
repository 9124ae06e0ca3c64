-- Files a link has seen and no landing has acknowledged, with the times they cover by the site's own names of devices, and what
-- the catalog puts before these. Parameters: link.
SELECT f.path, f.size, f.generation, COALESCE(f.reason, '') AS reason, COALESCE(e.extent, '[]') AS extent, s.prefix
FROM file f
JOIN link l ON l.link = f.link
JOIN site s ON s.site_id = l.site_id
LEFT JOIN file_extent e ON e.link = f.link AND e.path = f.path
WHERE f.link = :link AND f.state = 'waiting'
ORDER BY f.path

-- Files a link knows and has not seen acknowledged, oldest first. Parameters: link.
SELECT f.path, f.size, f.mtime, COALESCE(f.reason, '') AS reason
FROM file f WHERE f.link = :link AND f.state = 'waiting'
UNION
SELECT i.path, i.size, i.mtime, COALESCE(i.reason, '') AS reason
FROM run_item i JOIN run r ON r.run_id = i.run_id
WHERE r.link = :link AND r.state <> 'finished' AND i.action IN ('send', 'mods') AND i.state <> 'landed'
  AND NOT EXISTS (SELECT 1 FROM file f WHERE f.link = :link AND f.path = i.path AND f.state = 'waiting')
ORDER BY mtime, path

-- What a link's receiver acknowledged and the site still has, as of the newest listing. Parameters: link.
SELECT path, size, mtime, mods_size, mods_mtime, generation, sha256, mods_sha256, COALESCE(reason, '') AS reason
FROM file WHERE link = :link AND state IN ('acked', 'held') ORDER BY path

-- Source paths that are, or end with, what somebody named. Parameters: path, ending (a LIKE pattern with \ as escape).
SELECT DISTINCT site_id, path FROM (
    SELECT l.site_id, f.path FROM file f JOIN link l ON l.link = f.link WHERE f.path = :path OR f.path LIKE :ending ESCAPE '\'
    UNION
    SELECT l.site_id, k.path FROM skipped_file k JOIN link l ON l.link = k.link
    WHERE k.path = :path OR k.path LIKE :ending ESCAPE '\'
    UNION
    SELECT site_id, path FROM inventory WHERE path = :path OR path LIKE :ending ESCAPE '\'
    UNION
    SELECT site_id, path FROM catalog_file WHERE role = 'source' AND (path = :path OR path LIKE :ending ESCAPE '\')
    UNION
    SELECT site_id, path FROM catalog_file WHERE role = 'source' AND (location = :path OR location LIKE :ending ESCAPE '\')
    UNION
    SELECT site_id, path FROM quarantine WHERE path = :path OR path LIKE :ending ESCAPE '\'
    UNION
    SELECT site_id, path FROM refusal WHERE path = :path OR path LIKE :ending ESCAPE '\'
) AS named
ORDER BY site_id, path

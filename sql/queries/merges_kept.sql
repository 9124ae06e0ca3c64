-- Overlapping files that stay as they came, and why. Parameters: site (UUID).
SELECT receiver, files, subject, reason, at FROM merge_kept WHERE site_id = :site ORDER BY at

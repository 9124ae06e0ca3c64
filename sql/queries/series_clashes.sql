-- Series to which two sources give different types. Parameters: site (UUID).
SELECT receiver, series, type, clash, source FROM schema_series WHERE site_id = :site AND clash IS NOT NULL ORDER BY series

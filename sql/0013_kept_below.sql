-- Files that their site has no more rank below all that it has: the first number of their rank is -1. Those that were kept before
-- are judged again by the first load, which ranks them and withdraws what was merged from them.

UPDATE pending_drop SET state = 'pending' WHERE state = 'done' AND kind = 'dropped' AND EXISTS (
    SELECT 1 FROM catalog_file f WHERE f.receiver = pending_drop.receiver AND f.site_id = pending_drop.site_id
    AND f.path = pending_drop.path AND f.role = 'source' AND f.state = 'live' AND f.marked = 'dropped'
);

-- What stands in front of a site's devices of the tree model in the catalog. Its files keep the names that they came with.

ALTER TABLE site ADD COLUMN prefix TEXT NOT NULL DEFAULT '';          -- canonical, e.g. root.ship7; '': nothing

ALTER TABLE catalog_file ADD COLUMN prefix TEXT NOT NULL DEFAULT '';  -- of its site, where the file's own names lack it; '' for merged

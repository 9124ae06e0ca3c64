-- Places of data files that must stay: live, or retired within the grace. Parameters: receiver, before.
SELECT location, mods_location FROM catalog_file
WHERE receiver = :receiver AND (state = 'live' OR (state = 'retired' AND retired >= :before))

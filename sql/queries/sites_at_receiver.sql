-- Sites of which something came to a receiver, or was told. Parameters: receiver.
SELECT site_id FROM landing WHERE receiver = :receiver
UNION
SELECT site_id FROM inventory WHERE receiver = :receiver
UNION
SELECT site_id FROM catalog_file WHERE receiver = :receiver
ORDER BY site_id

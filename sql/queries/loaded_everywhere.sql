-- Landings that a receiver has loaded, of every site. Parameters: receiver.
SELECT site_id, landing, manifest_sha256 FROM landing WHERE receiver = :receiver AND state = 'loaded' ORDER BY site_id, sequence

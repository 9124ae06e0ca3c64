-- A merged file with its account, for its paper. Parameters: file_id.
SELECT f.*, a.batch, a.points_in, a.points_out, a.overwritten, a.deleted, a.at AS merged_at
FROM catalog_file f JOIN merge_account a ON a.merged_id = f.file_id WHERE f.file_id = :file_id

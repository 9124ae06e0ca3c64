"""What a TsFile is: its names, its bytes, its points and its companions, for IoTDB 0.9 to 2.x.

Enter by `reader.TsFile` for points, `statistics.check_and_describe` for what a file holds, `sealed.classify_listing` for
which files of a listing are sealed, `write.writer.TsFileWriter` to make one, `spark.source.register` for Spark.

    names         what name and place of a file say; files that belong to a receiver are refused here
    devices       one canonical text for a device, of both models and all versions
    times         bounds in time as people write them
    points/       type codes, a column of points, who wins where, compiled kernels
    layout/       the bytes of a file: footer, index, series, chunks; is it whole
    sealed        which files of a listing are sealed, and why the others are not; pure
    companions/   `.resource`, `.mods` and `.mods2`, the log of the schema
    decode/       from pages to points: compressions and encodings
    statistics    devices, intervals, points, types of a file; no page is decoded
    write/        TsFiles of V4; devices and chunks that are copied without being decoded
    reader        every series of V3 and V4, exactly or not at all; chunks as they stand
    spark/        TsFiles as a data source of Spark

Imports `errors`, `native`, `untrusted_files` and nothing else of ours. It knows no ledger, no store and no site. A
file that was not verified may hang or crash the reader, so it is opened in a child process of `engines`. An encoding
that is not decoded raises UnsupportedError: nothing is guessed.
"""

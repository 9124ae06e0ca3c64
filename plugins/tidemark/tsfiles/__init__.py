"""Names, bytes, points and companion files of TsFiles, for IoTDB 0.9 to 2.x.

Enter by `reader.TsFile` to read points, `statistics.check_and_describe` to check and summarize a file,
`sealed.classify_listing` to find the sealed files of a listing, `write.writer.TsFileWriter` to write a file, and
`spark.source.register` for Spark.

    names         parse a file's name and folder; refuse files that belong to a receiver
    devices       one canonical text for a device, of both models and all versions
    times         parse time bounds
    points/       type codes, columns of points, overlay of columns, compiled kernels
    layout/       the bytes of a file: footer, index, series, chunks, structure check
    sealed        which files of a listing are sealed, and why the others are not; pure
    companions/   `.resource`, `.mods` and `.mods2`, the log of the schema
    decode/       from pages to points: compressions and encodings
    statistics    devices, intervals, points, types of a file; no page is decoded
    write/        write TsFiles of V4; copy devices and chunks without decoding them
    reader        read every series of V3 and V4, exactly or not at all; read chunks undecoded
    spark/        TsFiles as a data source of Spark

Imports of this project only `errors`, `native` and `untrusted_files`. It knows no ledger, no store and no site. An
unverified file may hang or crash the reader, so it is opened in a child process of `engines`. An encoding that is not
decoded raises UnsupportedError: nothing is guessed.
"""

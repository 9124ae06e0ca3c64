"""Write TsFiles of V4 from points, or copy devices and chunks of other files undecoded.

Enter by `writer.TsFileWriter`.

    values        encode the values of one page: TS_2DIFF and PLAIN
    copy_devices  find and read devices that can be copied whole
    statistics    the statistics of pages, chunks and copies
    pages         split a device into chunks and pages, and encode them
    writer        write the file and its index
    companions    encode a `.resource`, and deletions of the table model

Imports `tsfiles.layout`, `tsfiles.points` and `tsfiles.decode`. A closed file is durable under its name. A file that
was not closed leaves nothing under it. Memory holds one device and the index.
"""

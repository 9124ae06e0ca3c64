"""TsFiles of V4: written from points, or copied from files as they stand.

Enter by `writer.TsFileWriter`.

    values        the encodings of one page: TS_2DIFF and PLAIN
    tally         what a file holds by its index alone
    copy_devices  devices that are copied whole
    statistics    the statistics of pages, chunks and copies
    pages         how a device is cut into chunks and pages
    writer        the file and its index

Imports `tsfiles.layout`, `tsfiles.points`, `tsfiles.decode`, `tsfiles.reader`. A closed file is durable under its
name. One that was not closed leaves nothing under it. Memory holds one device and the index.
"""

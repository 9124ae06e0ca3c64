"""Tables that follow the changes of a source: Delta tables, TsFiles of a site, or every change in Parquet.

Enter by `deliver.deliver_sink`: one run of a sink. `deliver.read_sink_table` gives what a table holds.
`verify.verify.verify_sink` compares it with the source.

    definitions  pure: which tables a statement empties, renames or changes
    batches      what a sink writes in one go: which transactions, and their rows by table
    fold         pure: columns of a lake, and the last state of each key in a batch
    points       pure: rows of a table as points of TsFiles
    history      every change, as Parquet files
    delta        the tables as they are, one MERGE a batch
    catalog      the tables as they are, as files of a site
    show         what the ledger knows of a sink
    tasks        what a batch costs, as tasks of an engine
    engine       where that is done: in this process, or by tasks on Spark
    deliver      a run: lease, plan, record, write, move the points
    verify/      tables at the source and in the sink, both at one place

Imports `changes.sources` and what is below, `engines.choose`, `errors`, `ledger`, `stores.agent.durable`, `tsfiles` and
`untrusted_files`. `delta` imports the package `deltalake` when it is used: nothing else needs it.
"""

"""Everything that a run needs, checked in advance.

Enter by `doctor.doctor(config, environ)`. Each finding has a subject, whether it is right, and what to do if not.

    stores   a store: login, host key, tools, folders, right to write, links, clock, space; the class of findings
    nodes    a data node, and the IoTDB of a receiver
    spark    the master of Spark, where it is another machine
    names    device names that two sites of one receiver have
    sources  a source of changes, a sink
    doctor   the command: settings, ledger, Java, stores, nodes, sources, sinks, servers

Imports `changes.sources`, `cluster`, `receiver.iotdb`, `engines.java`, `ledger`, `settings`, `stores`, `sync.notes` and
`tsfiles`. It never raises what it finds, and it repairs nothing. It changes nothing but a small file that it writes and
removes wherever Tidemark must be able to write.
"""

"""Everything a run needs, checked before a run needs it.

Enter by `doctor.doctor(config, environ)`. Each finding says what was checked, whether it is as it should be, and
what to do if not.

    stores   a store: login, host key, tools, folders, right to write, links, clock, space; the shape of a finding
    nodes    a data node, and the IoTDB that a receiver names
    doctor   the verb: settings, ledger, Java, stores, nodes, servers

Imports `cluster`, `receiver.iotdb`, `engines.java`, `ledger`, `settings`, `stores`, `sync.notes`. It never raises
what it finds. It changes nothing but a small file that it writes and removes where Tidemark must be able to write.
It repairs nothing.
"""

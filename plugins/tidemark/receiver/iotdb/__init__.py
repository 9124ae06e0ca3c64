"""LOAD the catalog into the IoTDB that a receiver's settings name, in the right order, and count the points afterwards.

Enter by `load.load_iotdb`, and by `load.with_iotdb` after a load.

    plan      which files are LOADed unchanged, which go as points, which not; pure
    staging   check a file, give it a name that the server may read, remove it afterwards
    thrift    the address of a server, and the client protocol
    session   one session: statements, queries, results as columns
    server    a server as one load uses it; statements by version
    points    compare a server's points with the catalog's and send the difference
    count     count by device whether all points are there
    apply     carry out the plan, with a record before and after each effect
    load      all of it, in order

Imports `receiver.load`, `receiver.view`, `cluster`, `app`, `ledger`, `settings`, `stores`, `tsfiles`. The catalog never
waits for the server. If the server is down, full or refuses a file, the next load tries again. Nothing is LOADed twice: for
a row in state `giving` the server is asked first. A server lets the file LOADed last win, so late files go as points.
"""

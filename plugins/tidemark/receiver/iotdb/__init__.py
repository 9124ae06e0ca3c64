"""The catalog into the IoTDB that a receiver's settings name: LOADed once, in the right order, counted after.

Enter by `load.load_iotdb`, and by `load.with_iotdb` after a load.

    plan      which files go as they are, which only in points, which not; pure
    staging   files on their way: checked once more, given a name that the server may read, removed
    thrift    the address of a server, and the client protocol
    session   one session: statements, questions, answers as columns
    server    a server as one load speaks with it; statements by version
    points    what a server lacks and has too much, and the difference given to it
    count     are all points there, counted by device
    apply     what the plan says, a record before and one after each effect
    load      all of it, in order

Imports `receiver.load`, `receiver.view`, `cluster`, `app`, `ledger`, `settings`, `stores`, `tsfiles`. The catalog
comes first and never waits for the server. One that is down, full or refuses a file leaves it for the next load.
Nothing is LOADed twice: what stands as `giving` in the ledger is first asked of the server. A server takes whatever
is LOADed last for the newest, so late files go as points.
"""

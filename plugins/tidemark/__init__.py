"""Tidemark keeps a data centre in step with its edge sites: every sealed TsFile, once, unchanged, provably.

The packages in layers, from the top down. A package imports packages of lower layers, never of its own layer or above.

    cli            the command line: parser, screen, one module a group of verbs
    orchestration  everything that knows Airflow: tasks, DAGs, the embedded deployment
    catalog_source  what readers see of a receiver, as a data source of Spark; in the layer of orchestration
    operations     what an operator does across subjects: decisions, housekeeping, doctor, rebuild of a lost ledger
    proof          what is where and why: status, coverage, verify, why, the pages of a cluster
    changes        every change of MySQL and MariaDB tables, kept in a store; in the layer of sync
    sync           edge to landing: a link's run of seven steps
    receiver       landing to readers: load, merge, read, LOAD into an IoTDB
    cluster        a receiver's data at several nodes: slots, replicas, migration, membership, health
    transfer       the transfer engine: files from one store to another, by `transfer.engine`      ┐
    formats        files for other programs: manifest, receipt, records, layout of a receiver      │ one layer
    engines        heavy tasks in child processes or on Spark                                      │
    app            settings, ledger and stores, opened by `open_app`                               ┘
    stores         where bytes live: one protocol over a disk, python3 by SSH, POSIX tools, SFTP
    tsfiles        what a TsFile is: names, companions, statistics, reader, writer, Spark source
    connections    logins that Airflow keeps, read by their ids                                    ┐
    ledger         the metadata database: leases, journal, the rows of every table                 │
    settings       `tidemark.toml` as frozen values                                                │ one layer
    untrusted_files   open files in folders that other users can write to                          ┘
    spelling          commands in what is said, as a user would type them
    installation      where migrations, DAGs and jobs lie: in a checkout, in an installed wheel
    errors  progress  native  visible  visible_log   the error tree; progress; compiled C; escaped text for people

The path of a file: `sync.select` → `sync.send` → `transfer` → `receiver.load` → `ledger.receiver.catalog` →
`receiver.merge` → `receiver.read`. Each folder's docstring names its entry points, its modules from the bottom up and its
imports. Contracts in `pyproject.toml` hold the layers; `tests/unit/test_house.py` runs them. Inside a subject: decide
(pure), act, record in the ledger. A rerun resumes from the ledger. Not promised: rows in real time, data that the edge has
not sealed, exactly-once delivery. The effect is exactly once.
"""

__version__ = "0.1.0"

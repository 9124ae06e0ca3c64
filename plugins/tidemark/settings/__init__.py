"""The settings: `tidemark.toml` plus `TIDEMARK__SECTION__KEY`, read once into frozen values.

Enter by `load`: `find(path, environ)` says which file it is, `load(path, environ)` gives `model.Settings` or one
UsageError with every problem, each with its place and what is allowed. All other rooms import `model` alone.

    model       the frozen dataclasses: each field with its default, its unit and its meaning
    document    the values as they were written, each with its place (line, or environment variable)
    template    the commented file that `./tidemark init` writes
    values      what each kind of value may be; pure
    window      the hours in which a link may transfer: `is_open`, `opens`, `require_window`; pure
    keys        which keys a section has and how each is read; problems are gathered here
    references  what sections say of each other: names that exist, UUIDs that differ, host keys that sftp needs
    load        all of them, in order

Imports `errors` and `visible`. Nothing else in Tidemark reads the environment for settings. Not asked here: whether
a folder or a server exists. `operations.doctor` asks that.
"""

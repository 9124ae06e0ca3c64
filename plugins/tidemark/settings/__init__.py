"""The settings: `tidemark.toml`, what it includes, and `TIDEMARK__SECTION__KEY`, read once into frozen values.

Enter by `load`. `find_settings` says which file it is. `load_settings` gives `model.Settings`, or one UsageError with
every problem, each with its place and what is allowed. Other packages use its values: `model`, and `window` for the hours.

    values      what each kind of value may be, how it is read and how it is written
    model       every setting, declared once: its default, what it may be, its meaning
    template    the file that `init` writes
    window      the hours in which a link may transfer: `is_open`, `next_opening`, `require_window`; pure
    document    the values as they were written, in all files, each with its place; the links that a pattern makes; what is
                wrong is gathered here
    load        all of them, in order, over their defaults; what sections say of each other

Imports `errors` and `visible`. Nothing else in Tidemark reads the environment for settings. This package does not ask
whether a folder or a server exists. `operations.doctor` asks that.
"""

"""The `tidemark` command: parse, call one verb of a room below, print.

    screen    results to stdout, all else to stderr; a file that a verb writes, whole or not there
    call      one invocation: arguments, settings, the open `App`; what a verb is and what it gives back
    progress  a bar on a terminal, now and then a line elsewhere
    verbs/    the verbs, a module a group; each calls its room lazily, so that a command imports only what it needs
    parser    verbs, options, help with an example each
    main      from the command line to an exit code: errors, signals, `--json`
    __main__  `python -m tidemark.cli`, what the launcher starts

Enter by `main.main`. Imports every room below. It prints and asks; it decides nothing. With `--json` one object is
last on stdout. The exit code is the `kind` of the error (`errors`).
"""

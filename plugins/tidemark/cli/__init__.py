"""The `tidemark` command: parse the command line, call one package below, print the result.

    screen    print results to stdout and all else to stderr, escaped by `visible`; write output files atomically
    call      one invocation: arguments, settings, the open `App`; the types of a verb and of its answer
    log       the log of one command: -v, --log-file, --log-json
    progress  a progress bar on a terminal, a line now and then elsewhere
    failure   what is said of an error, whatever was raised
    several   a verb for several links or receivers: one that fails costs itself alone
    beside    several links at once, each in a thread
    guide     completion and the man page, made from the parser
    verbs/    the verbs, a module a group; each imports the package that it calls only when it runs
    main      from the command line to an exit code: errors, signals, `--json`
    __main__  `python -m tidemark.cli`, which the launcher starts

Enter by `main.main`. Imports every package below. It prints and asks; it decides nothing. With `--json` the last line
of stdout is one object. The exit code is the `kind` of the error (`errors`).
"""

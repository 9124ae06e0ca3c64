"""The `tidemark` command: parse, call one flow, print (CONTRACT §1).

main      from the command line to an exit code: errors, signals, `--json`
parser    verbs, options, help with an example each
verb      what a verb is: `Verb`, and `Answer`, what it gives back
call      one invocation: arguments, settings, the open App, the screen
screen    results to stdout, all else to stderr
progress  bars on a terminal, now and then a line elsewhere
verbs_*   the verbs, a module a group; each calls its flow lazily, so that a command imports only what it needs
"""

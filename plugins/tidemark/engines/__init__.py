"""Run heavy tasks outside this process: in child processes, or on Spark.

Enter by `choose.choose_engine(settings, wanted, points)`. It returns an `Engine`, or the one that the caller wants
(`EngineChoice`). `run(kind, tasks)` yields one `task.Outcome` a task, in any order. A kind is one picklable function
`task -> result`; `task.KINDS` names them.

    task     limits, outcomes, the kinds
    worker   the child process: reads tasks from stdin, writes answers to stdout, ends with its parent
    java     find or install the Java that runs Spark
    pool     child processes of this process; a child that dies costs only its task
    spark    a Spark driver in a process of its own, which runs one job after another
    choose   choose pool or Spark; start tasks before their outcomes are requested

Imports `settings.model`, `stores.protocol`, `errors`, `native`, `visible_log`. Others enter by `choose` and `task`, and
the doctor by `java`. Each task runs alone in a child that was started with exec and never forked, under a limit of CPU
time, memory and wall time. A crash or an exceeded limit is an error of that task alone. Not guaranteed: that a task
runs once. So a task changes nothing but its own outputs.
"""

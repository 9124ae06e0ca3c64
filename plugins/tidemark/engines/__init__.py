"""Heavy tasks run outside this process: in fresh child processes, or spread by Spark.

Enter by `choose.choose_engine(settings, wanted, points)`. It gives an `Engine`; `run(kind, tasks)` yields one
`task.Outcome` a task, in any order. A kind is one picklable function `task -> result`; `task.KINDS` names them.

    task     limits, outcomes, the kinds
    worker   the child: a task from stdin, its answer on stdout; ends with its parent
    java     which Java runs Spark
    pool     children of this process; one that dies costs only its task
    spark    a driver as a process of its own, which takes one job after another
    choose   pool or Spark; tasks that begin before anybody asks for them

Imports `settings.model`, `stores.address`, `errors`, `native`, `visible`. Others enter by `choose` and `task`, and
the doctor by `java`. A task runs in a child that was started fresh and never forked, one at a time, under a limit of
CPU time, memory and wall time. What a task does to its child is a named error of that task alone. Not guaranteed:
that a task runs once. So a task changes nothing but its own outputs.
"""

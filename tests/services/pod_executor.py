"""An executor that runs each task as a pod of Airflow's KubernetesExecutor does, without Kubernetes.

A pod is given one command, with the task as JSON, and has nothing of the scheduler's process. Airflow imports this module by
its setting `executor`: it knows no other module of the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from airflow.executors.base_executor import BaseExecutor

COMMAND = "airflow.sdk.execution_time.execute_workload"  # what the KubernetesExecutor of Airflow's provider runs in a pod
TAKEN = ("PATH", "HOME", "LC_ALL", "PYTHONPATH")  # and whatever names Airflow or Tidemark: what an image would set


class PodExecutor(BaseExecutor):
    """Each task in an interpreter of its own, which its exit code ends."""

    is_local = True
    serve_logs = False

    def start(self) -> None:
        self.pods: dict[Any, subprocess.Popen[bytes]] = {}

    def _process_workloads(self, workload_items: Sequence[Any]) -> None:
        ours = {k: v for k, v in os.environ.items() if k in TAKEN or k.startswith(("AIRFLOW", "TIDEMARK"))}
        for one in workload_items:
            self.queued_tasks.pop(one.key)
            self.running.add(one.key)
            words = [sys.executable, "-m", COMMAND, "--json-string", one.model_dump_json()]
            self.pods[one.key] = subprocess.Popen(words, env=ours, start_new_session=True)

    def sync(self) -> None:
        for key, pod in list(self.pods.items()):
            if pod.poll() is not None:
                del self.pods[key]
                self.fail(key) if pod.returncode else self.success(key)

    def end(self) -> None:
        self.terminate()

    def terminate(self) -> None:
        for pod in self.pods.values():
            pod.kill()
            pod.wait()

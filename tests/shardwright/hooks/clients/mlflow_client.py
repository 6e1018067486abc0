"""Tracks a run with MLflow in a local store, and prints its id.

MLFLOW_TRACKING_URI=URI python mlflow_client.py, with its parameters as JSON on standard input
"""

import json
import sys

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

client = MlflowClient()
run = client.create_run(client.create_experiment("llama"))
for name, value in json.loads(sys.stdin.read()).items():
    client.log_batch(run.info.run_id, params=[Param(name, str(value))])
steps = range(1, 31)
seconds = [Metric("train/step_time", 300.0 + 50 * (step < 4), 1000 * step, step) for step in steps]
memory = [Metric("memory/max_reserved_gib", 180.0, 1000 * step, step) for step in steps]
client.log_batch(run.info.run_id, metrics=[*seconds, *memory])
client.set_terminated(run.info.run_id, "FINISHED")
print(json.dumps(run.info.run_id))

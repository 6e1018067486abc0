"""Launches a task as far as the admin policy, by the real SkyPilot, and prints what goes on.

python skypilot_client.py URL, with the task on standard input
"""

import json
import os
import sys
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
configuration = folder / "config.yaml"
configuration.write_text(f"admin_policy: {sys.argv[1]}\n")
os.environ |= {
    "SKYPILOT_GLOBAL_CONFIG": str(configuration),
    "HOME": str(folder),
    # With an address, even of nobody, it starts no API server, which would outlive this program.
    "SKYPILOT_API_SERVER_ENDPOINT": "http://127.0.0.1:9",
}

import sky
import yaml
from sky.server.requests import request_names
from sky.utils import admin_policy_utils

task = sky.Task.from_yaml_config(yaml.safe_load(sys.stdin.read()))
name = request_names.AdminPolicyRequestName.CLUSTER_LAUNCH
try:
    dag, _ = admin_policy_utils.apply(task, name, at_client_side=True)
except sky.exceptions.UserRequestRejectedByPolicy as refusal:
    print(json.dumps({"refusal": str(refusal)}))
else:
    print(json.dumps({"before": task.to_yaml_config(), "after": dag.tasks[0].to_yaml_config()}))

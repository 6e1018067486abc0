"""Applies a run as far as the plugins of dstack's server, by the real plugin that asks a service,
and prints what goes on.

DSTACK_PLUGIN_SERVICE_URI=URL python dstack_client.py, with the configuration on standard input
"""

import asyncio
import json
import os
import sys
import tempfile

os.environ["HOME"] = tempfile.mkdtemp()

import yaml
from dstack._internal.core.errors import ServerClientError
from dstack._internal.core.models.runs import RunSpec
from dstack._internal.server.services.plugins import apply_plugin_policies, load_plugins

load_plugins(["rest_plugin"])
spec = RunSpec.model_validate(
    {"run_name": "llama", "configuration": yaml.safe_load(sys.stdin.read())}
)
before = json.loads(spec.model_dump_json())
try:
    after = asyncio.run(apply_plugin_policies("ann", "main", spec))
except ServerClientError as refusal:
    print(json.dumps({"refusal": str(refusal)}))
else:
    print(json.dumps({"before": before, "after": json.loads(after.model_dump_json())}))

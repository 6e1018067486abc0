"""The hooks, called by the real clients of the schedulers."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwright.hooks import kubernetes
from tests.shardwright.hooks.environments import ask, needs
from tests.shardwright.hooks.jobs import (
    BETTER_FLAG,
    ILLEGAL,
    MEGATRON,
    dstack_run,
    dstack_spec,
    numbered,
    skypilot_task,
)
from tests.shardwright.hooks.kubernetes import objects
from tests.shardwright.hooks.overhead import BUDGET_S, PATIENT_S, UP_S, has_idle_cores, p95_s
from tests.shardwright.hooks.policy_process import policy_process
from tests.shardwright.hooks.services import ServiceProcess

pytestmark = pytest.mark.hooks
SKYPILOT = needs("skypilot")
DSTACK = needs("dstack")
KUBERNETES = needs("kubernetes")
_CHIPS = '[chips]\nlarge = "b300"\n'


@pytest.fixture(scope="module")
def server(service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A policy server that neither changes nor refuses anything."""
    with policy_process(tmp_path_factory.mktemp("policy"), f'url = "{service.url}"\n') as url:
        yield url


@pytest.fixture(scope="module")
def bold(service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A policy server that changes jobs and refuses illegal ones."""
    budget = f"budget_s = {PATIENT_S}\n"
    policy = f'url = "{service.url}"\n{budget}patch = true\nenforce = ["illegal"]\n{_CHIPS}'
    with policy_process(tmp_path_factory.mktemp("bold"), policy) as url:
        yield url


def _sky(server: str, script: str) -> Any:
    return ask("skypilot", f"{server}/skypilot", given=skypilot_task(script))


def _dstack(server: str, script: str) -> Any:
    return ask("dstack", given=dstack_run(script), DSTACK_PLUGIN_SERVICE_URI=f"{server}/dstack")


BOTH = pytest.mark.parametrize(
    "launch", [pytest.param(_sky, marks=SKYPILOT), pytest.param(_dstack, marks=DSTACK)]
)


@BOTH
def test_a_job_goes_on_unchanged(server: str, launch: Callable[..., Any]) -> None:
    for script in (MEGATRON, ILLEGAL):
        launched = launch(server, script)
        assert launched["after"] == launched["before"]


@BOTH
def test_a_job_says_the_better_flag_where_it_may_be_changed(
    bold: str, launch: Callable[..., Any]
) -> None:
    launched = launch(bold, MEGATRON)["after"]
    variables = launched.get("envs") or launched["configuration"]["env"]
    commands = launched.get("run") or "\n".join(launched["configuration"]["commands"])
    assert BETTER_FLAG in variables["SHARDWRIGHT_CHECK"]
    assert commands.startswith('echo "$SHARDWRIGHT_CHECK" >&2\n')


@BOTH
def test_an_illegal_job_is_refused_with_its_reason_where_that_is_enforced(
    bold: str, launch: Callable[..., Any]
) -> None:
    assert "--tensor-model-parallel-size 3" in launch(bold, ILLEGAL)["refusal"]


@BOTH
def test_a_job_goes_on_unchanged_where_the_service_hangs(
    bold: str, service: ServiceProcess, launch: Callable[..., Any]
) -> None:
    with service.frozen():
        launched = launch(bold, ILLEGAL)
    assert launched["after"] == launched["before"]


@KUBERNETES
def test_kubernetes_takes_the_manifest_and_what_a_patch_makes_of_jobs(bold: str) -> None:
    manifest = Path(kubernetes.__file__).with_name("webhook.yaml").read_text()
    jobs = [make() for make in objects.ALL.values()]
    after = [_patched(bold, job) for job in jobs]
    assert after != jobs
    said = ask("kubernetes", given=manifest + "".join(f"---\n{json.dumps(job)}\n" for job in after))
    read = {kind for kind, is_valid in said if is_valid is True}
    unknown = {kind for kind, is_valid in said if is_valid is None}
    assert read == {
        *("Namespace", "ConfigMap", "Deployment", "Service", "MutatingWebhookConfiguration"),
        *("Job", "TrainJob"),
    }
    # Schemas of these come with their controllers, which no package has.
    assert unknown == {"Issuer", "Certificate", "JobSet", "PyTorchJob"}


def _patched(server: str, job: dict[str, Any]) -> dict[str, Any]:
    response = _post(f"{server}/kubernetes", objects.review(job))["response"]
    return objects.patched(job, json.loads(base64.b64decode(response["patch"])))


def test_the_webhook_speaks_tls_with_the_certificate_that_it_was_given(
    service: ServiceProcess, tmp_path: Path
) -> None:
    certificate = tmp_path / "tls.crt"
    key = tmp_path / "tls.key"
    _make_certificate(certificate, key)
    options = (f"--certificate={certificate}", f"--key={key}")
    with policy_process(tmp_path, f'url = "{service.url}"\n{_CHIPS}', *options) as url:
        trusted = ssl.create_default_context(cafile=str(certificate))
        answer = _post(f"{url}/kubernetes", objects.review(objects.train_job()), trusted)
    assert answer["response"]["allowed"]
    assert answer["response"]["warnings"]


def _make_certificate(certificate: Path, key: Path) -> None:
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
        + ["-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )


@pytest.mark.parametrize("caller", ["kubernetes", "skypilot", "dstack"])
def test_a_check_delays_a_job_by_less_than_its_budget(
    server: str, service: ServiceProcess, caller: str
) -> None:
    bodies = {
        "kubernetes": ("/kubernetes", objects.review(objects.job())),
        "skypilot": (
            "/skypilot",
            json.dumps({"task": skypilot_task(MEGATRON), "skypilot_config": ""}),
        ),
        "dstack": (
            "/dstack/apply_policies/on_run_apply",
            {"user": "ann", "project": "main", "spec": dstack_spec(MEGATRON)},
        ),
    }
    path, body = bodies[caller]

    def check(number: int) -> None:
        _post(f"{server}{path}", json.loads(numbered(json.dumps(body), number)))

    is_idle = has_idle_cores()
    up_s = p95_s(check, 40)
    with service.frozen():
        hanging_s = p95_s(check, 5)
    print(f"{caller}: p95 {up_s * 1e3:.0f} ms with the service up, {hanging_s:.2f} s hanging")
    assert hanging_s < BUDGET_S
    assert up_s < UP_S or not is_idle


def _post(url: str, body: Any, context: ssl.SSLContext | None = None) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, context=context) as response:
        return json.load(response)

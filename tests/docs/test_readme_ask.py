"""The function `ask` of the README, where a service refuses or does not answer."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT

_NOBODY = "http://127.0.0.1:9/v1/recommendations"
_OLD_PROBLEM = '{"detail": "an old problem"}'


@pytest.mark.parametrize("earlier", [None, _OLD_PROBLEM, '{"id": "an old answer"}'])
def test_only_curl_speaks_where_no_service_answers(tmp_path: Path, earlier: str | None) -> None:
    if earlier is not None:
        (tmp_path / "answer").write_text(earlier)
    function = re.search(r"^ask\(\) \{\n.*?^\}\n", (ROOT / "README.md").read_text(), re.M | re.S)
    assert function is not None
    asked = f"{function.group()}ask {_NOBODY} -d '{{}}'"
    ended = subprocess.run(["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("curl: (7)")

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.client.settings import DEFAULT_URL
from shardwright.hooks.policy import HookPolicy

WHOLE = """
url = "http://shardwright:8000"
key_file = "{folder}/key"
budget_s = 1.5
enforce = ["illegal"]
patch = true

[chips]
gpu-large = "h100"
"""


def _read(folder: Path, text: str, **environment: str) -> HookPolicy:
    file = folder / "hooks.toml"
    file.write_text(text.replace("{folder}", str(folder)))
    return HookPolicy.read({"SHARDWRIGHT_HOOKS": str(file), **environment})


def test_the_file_says_where_to_ask_and_what_hooks_may_do(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    policy = _read(tmp_path, WHOLE)
    assert policy.service.url == "http://shardwright:8000"
    assert policy.service.key == "secret"
    assert policy.budget_s == 1.5
    assert policy.enforce == {"illegal"}
    assert policy.patch
    assert policy.chip_of([None, "cpu", "gpu-large"]) == "h100"
    assert policy.chip_of(["cpu"]) is None


def test_nothing_is_enforced_unless_the_administrator_says_so(tmp_path: Path) -> None:
    policy = _read(tmp_path, "")
    assert policy.enforce == frozenset()
    assert not policy.patch
    assert policy.service.url == DEFAULT_URL


def test_the_file_goes_before_the_environment_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    policy = _read(tmp_path, WHOLE, SHARDWRIGHT_URL="http://other", SHARDWRIGHT_KEY="other")
    assert (policy.service.url, policy.service.key) == ("http://shardwright:8000", "secret")
    assert _read(tmp_path, "", SHARDWRIGHT_URL="http://other").service.url == "http://other"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("urll = 'x'", "urll is no setting"),
        ("enforce = ['go_with_warnings']", "enforce may name illegal and will_not_fit only"),
        ("url", "hooks.toml"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _read(tmp_path, text)


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        HookPolicy.read({"SHARDWRIGHT_HOOKS": str(tmp_path / "none.toml")})

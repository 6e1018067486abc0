from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.client.settings import ClientSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHARDWRIGHT_URL", "127.0.0.1:8000"),
        ("SHARDWRIGHT_URL", "ftp://shardwright"),
        ("SHARDWRIGHT_KEY_FILE", "/no/such/key"),
        ("SHARDWRIGHT_TIMEOUT_S", "a minute"),
        ("SHARDWRIGHT_TIMEOUT_S", "0"),
        ("SHARDWRIGHT_TIMEOUT_S", "nan"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} .*{value}"):
        ClientSettings.from_environment({name: value})


def test_the_key_of_the_environment_goes_before_that_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("of the file\n")
    given = {"SHARDWRIGHT_KEY_FILE": str(file)}
    assert ClientSettings.from_environment(given).key == "of the file"
    given["SHARDWRIGHT_KEY"] = "of the environment"
    assert ClientSettings.from_environment(given).key == "of the environment"

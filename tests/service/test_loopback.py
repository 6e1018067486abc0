from __future__ import annotations

import pytest

from service.__main__ import main
from service.loopback import is_loopback


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("no-such-host.invalid", False),
    ],
)
def test_whether_other_machines_reach_a_host(host: str, alone: bool) -> None:
    assert is_loopback(host) == alone


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_what_other_machines_reach_has_to_be_guarded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    """The database is not to be had, so that a start that is not refused ends with 1."""
    monkeypatch.setenv("SHARDWRIGHT_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setattr("sys.argv", ["service", "--host", host])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    errors = capsys.readouterr().err
    assert "SHARDWRIGHT_REQUIRE_API_KEYS" in errors
    assert "SHARDWRIGHT_PROXY_CHECKS_CALLERS" in errors
    for guard in ("REQUIRE_API_KEYS", "PROXY_CHECKS_CALLERS"):
        with monkeypatch.context() as guarded:
            guarded.setenv(f"SHARDWRIGHT_{guard}", "true")
            assert main() == 1

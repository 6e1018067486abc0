"""Secrets in the text of callers: what is masked, and what is left as it is."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.secrets import MASK, mask_items, mask_secrets

SECRET = "s3cr3tV4lue"


@pytest.mark.parametrize(
    "text",
    [
        "--wandb-api-key {} --tensor-model-parallel-size 8",
        "--hf-token={} --x 1",
        "--hf-token \\\n  {} \\\n  --x 1",
        "--hub_token '{}'",
        'export WANDB_API_KEY="{}"; python train.py',
        "HF_TOKEN={} AWS_SECRET_ACCESS_KEY={} torchrun a.py",
        "COMET_KEY={}",
        "srun --export=ALL,HF_TOKEN={} a.sh",
        '"wandb_api_key": "{}", "tp": 8',
        "{{'hf_access_token': '{}', 'tp': 8}}",
        '{{\\"apiKey\\": \\"{}\\"}}',
        '["--wandb-api-key", "{}"]',
        "hf_access_token: {}\ntp: 8",
        "hf_access_token={} steps=10",
        "Namespace(api_key='{}', tp=8)",
        "  wandb_api_key ........................... {}",
        "api_key ................. {}\n",
        "password = {}",
        "db_credentials: '{}'",
        "curl -H 'Authorization: Bearer {}'",
        "Authorization: token {}",
        "Invalid Bearer {} was sent",
        "postgres://me:{}@db.example/x",
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
        "WANDB_API_KEY={}",
    ],
)
def test_what_has_the_name_of_a_secret_is_masked(text: str) -> None:
    masked = mask_secrets(text.replace("{}", SECRET))
    assert SECRET not in masked
    assert MASK in masked
    assert mask_secrets(masked) == masked


@pytest.mark.parametrize(
    "secret",
    [
        "hf_AbCdEfGhIjKlMnOpQrStUvWx",
        "sk-proj-abcdefghijklmnop1234",
        "ghp_abcdefghijklmnopqrst1234",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc",
    ],
)
def test_what_has_the_shape_of_a_secret_is_masked(secret: str) -> None:
    assert mask_secrets(f"ValueError: {secret} is refused") == f"ValueError: {MASK} is refused"


@pytest.mark.parametrize(
    "text",
    [
        "--moe-token-dispatcher-type alltoall --calculate-per-token-loss --num-layers 8",
        "--tokenizer-type NullTokenizer --tiktoken-num-special-tokens 1000",
        "--rl-skip-bos-token --x 1",
        "num_key_value_heads: 8\neos_token: </s>\npad_token_id: 0",
        "parallelism.context_parallel_ptrr_mask_key=flex",
        "--wandb-api-key $WANDB_API_KEY --hf-token ${HF_TOKEN:-x}",
        'export HF_TOKEN="$(cat token)"',
        "hf_access_token: null",
        "hf_train_files=/data/hf_c4_200000000000000/x task-parallel-0123456789abcdef",
        "KeyError: 'kimi_k3'",
        "consumed tokens: 123 | tokens per second: 5 | ms per token: 1.5",
        "--json-keys text --data-key text",
        "HF_TOKEN= torchrun a.py --x 1",
        "https://host:8080/path@x",
    ],
)
def test_other_text_is_left_as_it_is(text: str) -> None:
    assert mask_secrets(text) == text


def test_what_stands_behind_a_secret_is_kept() -> None:
    text = f'{{"hf_token": 123x, "password": 1234, "tp": 8}} --hub-token {SECRET} --pp 2'
    masked = f'{{"hf_token": "{MASK}", "password": "{MASK}", "tp": 8}} --hub-token {MASK} --pp 2'
    assert mask_secrets(text) == masked


def test_items_of_a_list_are_masked_by_the_one_in_front() -> None:
    items = ["--hf-token", SECRET, "--tp", 8, "--wandb-api-key", "--x", f"HF_TOKEN={SECRET}"]
    assert mask_items(items) == [
        "--hf-token", MASK, "--tp", 8, "--wandb-api-key", "--x", f"HF_TOKEN={MASK}",
    ]  # fmt: skip


@given(st.text(st.sampled_from("ab_-. =:,'\"\\\n{key}token$1")))
def test_a_mask_is_not_masked_again(text: str) -> None:
    masked = mask_secrets(text)
    assert mask_secrets(masked) == masked


@pytest.mark.parametrize(
    "piece", ["a", "-", "a.", "key=", "'", '"', "\\", " ", "token", "a:b@", "://a:", "=\\'", "x,"]
)
def test_any_text_is_read_in_little_time(piece: str) -> None:
    begun_s = process_time()
    mask_secrets(piece * (2**17 // len(piece)))
    mask_secrets("api_key=" + piece * (2**17 // len(piece)))
    mask_secrets(("api_key=" + piece) * (2**17 // (8 + len(piece))))
    assert process_time() - begun_s < 5

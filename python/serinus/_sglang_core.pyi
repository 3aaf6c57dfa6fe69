"""serinus._core.sglang: the canary in SGLang's format. Exists as a stub alone."""

from collections.abc import Sequence
from typing import Any

def check_source(source: Any, /) -> None: ...
def check_verify_capacity(verify_capacity: int, /) -> None: ...
def check_write_req_capacity(write_req_capacity: int, /) -> None: ...
def verify(context: Any, plan: Any, check_verify_expected_token: bool, threads: int) -> None: ...
def write(
    context: Any,
    plan: Any,
    input_ids: Any,
    positions: Any,
    out_cache_loc: Any,
    enable_write_input_assert: bool,
    expected_input_tokens: Any,
    expected_input_positions: Any,
    threads: int,
) -> None: ...
def plan(
    verify_plan_out: Any,
    write_plan_out: Any,
    req_pool_indices: Any,
    prefix_lens: Any,
    extend_seq_lens: Any,
    req_to_token: Any,
    swa_window_size: int,
    full_to_swa_index_mapping: Any,
    verify_capacity: int,
    req_to_verify_expected_tokens: Any,
    req_to_verify_expected_tokens_valid_lens: Any,
    kv_token_id_vs_position_offset: int,
    threads: int,
) -> None: ...
def scatter_req_token_ids(flat_in: Any, offsets: Any, req_pool_indices: Any, pool_out: Any) -> None: ...
def translate_slots(slots: Any, full_to_swa_index_mapping: Any, out: Any) -> None: ...
def report_text(row: Sequence[int], total_violations: int, ring_overflow: bool, step_when_pumped: int, /) -> str: ...
def request_id_hash(request_id: str, /) -> int: ...
def oracle_token(request_id_hash: int, position: int, vocab_size: int, /) -> int: ...

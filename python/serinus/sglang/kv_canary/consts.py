"""Constants and hashes of SGLang's canary format. Needs no torch."""

from __future__ import annotations

from enum import IntEnum, IntFlag

#: Hashed (splitmix64) it is the chain hash before a first token.
CANARY_CHAIN_ANCHOR: int = 0xC0FFEE1234567890
#: Slot of padded tokens: never verified, and as a predecessor unreachable.
TOKEN_TO_KV_SLOT_PADDING: int = 0
#: Row of padded requests: plans nothing.
REQ_POOL_IDX_PADDING: int = 0

# A slot's record: four int64.
CANARY_FIELDS_PER_SLOT: int = 4
CANARY_FIELD_TOKEN: int = 0
CANARY_FIELD_POSITION: int = 1
CANARY_FIELD_PREV_HASH: int = 2
CANARY_FIELD_REAL_KV_HASH: int = 3

# A row of the violation ring: eight int64.
VIOLATION_FIELDS: int = 8
VIOLATION_FIELD_KERNEL_KIND: int = 0
VIOLATION_FIELD_SLOT_IDX: int = 1
VIOLATION_FIELD_POSITION: int = 2
VIOLATION_FIELD_STORED_TOKEN: int = 3
VIOLATION_FIELD_EXPECTED_TOKEN: int = 4
VIOLATION_FIELD_STORED_CHAIN_HASH: int = 5
VIOLATION_FIELD_EXPECTED_AUX: int = 6
VIOLATION_FIELD_FAIL_REASON_BITS: int = 7

# Sources of real KV bytes, and how each is described to a kernel.
MAX_REAL_KV_SOURCES: int = 4
REAL_KV_SOURCE_FIELDS_PER_ENTRY: int = 3
REAL_KV_SOURCE_FIELD_PAGE_SIZE: int = 0
REAL_KV_SOURCE_FIELD_NUM_BYTES_PER_TOKEN: int = 1
REAL_KV_SOURCE_FIELD_READ_BYTES: int = 2

_MASK_64 = (1 << 64) - 1


class FailReason(IntFlag):
    """What a check found, in the last field of a ring row."""

    VERIFY_CHAIN_HASH_MISMATCH = 1
    VERIFY_POSITION_MISMATCH = 2
    VERIFY_REAL_KV_HASH_MISMATCH = 4
    WRITE_TOKEN_MISMATCH = 8
    WRITE_POSITION_MISMATCH = 16
    VERIFY_TOKEN_MISMATCH = 32


class RealKvHashMode(IntEnum):
    """How much of a slot's KV bytes is fingerprinted."""

    NONE = 0
    PARTIAL = 1  # the first 16 bytes of each source
    ALL = 2  # read_bytes of each source


def splitmix64(x: int) -> int:
    """SplitMix64's finaliser, without the golden-ratio increment; unsigned, and 0 stays 0."""
    x &= _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


def splitmix64_mix3(a: int, b: int, c: int) -> int:
    """splitmix64(splitmix64(splitmix64(a) ^ b) ^ c), unsigned."""
    return splitmix64(splitmix64(splitmix64(a) ^ (b & _MASK_64)) ^ (c & _MASK_64))

"""Examples of integer arithmetic. Expected values: Python integers, wrapped, or exact float64."""

from typing import Any

import numpy as np

from testing.npu_sim.examples import blocks
from testing.npu_sim.examples.example import Draw, Example

_SIZES = blocks.sizes(64)


def _integers_launch(draw: Draw, size: int):
    names = ("sum", "difference", "product", "low", "high", "and", "or", "xor", "not", "chosen")
    inputs = {"x": draw.words("x", size), "y": draw.words("y", size)[::-1]}
    inputs["y"][::3] = inputs["x"][::3]
    return blocks.launch(64, draw, size, inputs, *names)


def _integers(a: Any) -> None:
    bits = 8 * a.x.dtype.itemsize
    for i, (x, y) in enumerate(zip(a.x.tolist(), a.y.tolist(), strict=True)):
        results = {
            **{"sum": x + y, "difference": x - y, "product": x * y, "low": min(x, y)},
            **{"high": max(x, y), "and": x & y, "or": x | y, "xor": x ^ y, "not": ~x},
            **{"chosen": x if x > y else -y},
        }
        for name, value in results.items():
            wrapped = (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
            vars(a)[name][i] = wrapped


def _division_launch(draw: Draw, size: int):
    # Up to 2^24, where the compiler's way through fp32 is exact.
    x = draw.integers("x", -(2**24), 2**24, size)
    y = draw.integers("y", 1, 1000, size)
    y[::2] *= -1
    return blocks.launch(64, draw, size, {"x": x, "y": y}, "out")


def _large_division_launch(draw: Draw, size: int):
    grid, given = _division_launch(draw, size)
    return grid, {**given, "x": draw.words("x", size)}


def _quotient(a: Any) -> None:
    # Triton's is C's: towards zero.
    a.out[: a.size] = np.trunc(a.x.astype(np.float64) / a.y)


def _remainder(a: Any) -> None:
    a.out[: a.size] = np.fmod(a.x.astype(np.float64), a.y)


def _words_launch(draw: Draw, size: int):
    return blocks.launch(64, draw, size, {"x": draw.words("x", size)}, "out")


def _shift_left(a: Any) -> None:
    a.out[: a.size] = (a.x.astype(np.int64) * 8).astype(np.int32)


def _shift_right(a: Any) -> None:
    a.out[: a.size] = np.floor(a.x.astype(np.float64) / 32)


def _random_launch(draw: Draw, size: int):
    return blocks.launch(64, draw, size, {"seed": 7 + size}, "out")


def _random(a: Any) -> None:
    # Philox 4x32-10 (Salmon et al., 2011), its first word as a number in [0, 1).
    low = np.uint64(0xFFFFFFFF)
    counter = np.zeros((4, a.size), np.uint64)
    counter[0] = np.arange(a.size)
    keys = [a.seed, 0]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        upper = np.stack([second >> np.uint64(32), first >> np.uint64(32)])
        mixed = upper ^ counter[1::2] ^ np.array(keys, np.uint64)[:, None]
        counter = np.stack([mixed[0], second & low, mixed[1], first & low])
        keys = [(keys[0] + 0x9E3779B9) % 2**32, (keys[1] + 0xBB67AE85) % 2**32]
    signed = counter[0].astype(np.uint32).view(np.int32)
    whole = np.where(signed < 0, -signed - 1, signed)
    a.out[: a.size] = whole.astype(np.float32) * np.float32(4.6566127342e-10)


EXAMPLES = (
    *(Example(f"integers_{t}", _integers_launch, _SIZES, _integers) for t in ("i32", "i16")),
    Example("quotient_i32", _division_launch, _SIZES, _quotient),
    Example(
        "quotient_i32",
        _large_division_launch,
        ((100,),),
        _quotient,
        label="large",
        miscompiled={"arch32": "out_ptr against NumPy: .* differ"},
    ),
    Example("remainder_i32", _division_launch, _SIZES, _remainder),
    Example("shift_left_i32", _words_launch, _SIZES, _shift_left),
    Example("shift_right_i32", _words_launch, _SIZES, _shift_right),
    # The upper half of an unsigned product (tt.mulhiui) becomes that of a signed one.
    Example(
        "random",
        _random_launch,
        ((64,), (100,)),
        _random,
        miscompiled=dict.fromkeys(("arch32", "arch35"), "out_ptr against NumPy: .* differ"),
    ),
)

"""Examples with matrix products.

Operands are small whole numbers, so that products, sums in any order and what is rounded to 16 bits
in between are exact: a wrong tile, mask or flag cannot pass for a rounding error. The examples with
normal numbers have a tolerance.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from testing.npu_sim.examples.example import Draw, Example, Tolerance

_NO_BF16 = "its products of bf16 are wrong"


def _interpreter(name: str) -> str:
    if "hf32" in name:
        return "it does not know hf32"
    return _NO_BF16 if "bf16" in name else ""


def _matrix(a: Any, name: str, *shape: int) -> np.ndarray:
    return getattr(a, name).astype(np.float64).reshape(shape)


# ---- Products ---------------------------------------------------------------------------------


def _matmul_launch(draw: Draw, m: int, n: int, k: int, exact: int = 1):
    if exact:
        operands = {"a": draw.integers("a", -4, 5, m, k), "b": draw.integers("b", -4, 5, k, n)}
    else:
        operands = {"a": draw.normal("a", m, k), "b": draw.normal("b", k, n)}
    sizes = {"M": m, "N": n, "K": k}
    return (math.ceil(m / 32), math.ceil(n / 48)), {
        **operands,
        "out": draw.blank("out", m, n),
        **sizes,
    }


def _matmul(transpose_a: bool, transpose_b: bool):
    def expected(a: Any) -> None:
        left = _matrix(a, "a", *((a.K, a.M) if transpose_a else (a.M, a.K)))
        right = _matrix(a, "b", *((a.N, a.K) if transpose_b else (a.K, a.N)))
        out = (left.T if transpose_a else left) @ (right.T if transpose_b else right)
        a.out[: out.size] = out.astype(np.float32).reshape(-1)

    return expected


def _product_launch(draw: Draw, m: int, n: int, k: int):
    given = {"x": draw.integers("x", -9, 10, m, k), "y": draw.integers("y", -9, 10, k, n)}
    return (1,), {**given, "out": draw.blank("out", m, n)}


def _product(a: Any) -> None:
    a.out[: 64 * 48] = (_matrix(a, "x", 64, 96) @ _matrix(a, "y", 96, 48)).reshape(-1)


def _batched_launch(draw: Draw, batch: int, n: int):
    given = {
        "x": draw.integers("x", -9, 10, batch, n, n),
        "y": draw.integers("y", -9, 10, batch, n, n),
    }
    return (1,), {**given, "out": draw.blank("out", batch, n, n)}


def _batched(a: Any) -> None:
    a.out[:2048] = (_matrix(a, "x", 2, 32, 32) @ _matrix(a, "y", 2, 32, 32)).reshape(-1)


def _sums_launch(draw: Draw, tasks: int, steps: int):
    given = {"x": draw.integers("x", -9, 10, steps, 32, 32)}
    given["y"] = draw.integers("y", -9, 10, tasks, steps, 32, 32)
    return (1,), {**given, "out": draw.blank("out", tasks, 32, 32), "tasks": tasks, "steps": steps}


def _sums(a: Any) -> None:
    out = _matrix(a, "x", a.steps, 32, 32) @ _matrix(a, "y", a.tasks, a.steps, 32, 32)
    a.out[: a.tasks * 1024] = out.sum(1).reshape(-1)


# ---- Together with vector work ----------------------------------------------------------------


def _linear_launch(draw: Draw, m: int, n: int, k: int):
    given = {"x": draw.integers("x", -2, 3, m, k), "weight": draw.integers("weight", -2, 3, k, n)}
    return (1,), {**given, "bias": draw.integers("bias", -9, 10, n), "out": draw.blank("out", m, n)}


def _linear(a: Any) -> None:
    out = _matrix(a, "x", 64, 32) @ _matrix(a, "weight", 32, 48) + a.bias.astype(np.float64)
    a.out[: 64 * 48] = np.maximum(out, 0).reshape(-1)


def _scaled_launch(draw: Draw, m: int, n: int):
    given = {"x": draw.integers("x", -4, 5, m, m), "y": draw.integers("y", -4, 5, m, n)}
    return (1,), {
        **given,
        "scale": draw.integers("scale", -4, 5, m),
        "out": draw.blank("out", m, n),
    }


def _scaled(a: Any) -> None:
    x = _matrix(a, "x", 32, 32) * _matrix(a, "scale", 32, 1)
    a.out[: 32 * 48] = (x @ _matrix(a, "y", 32, 48)).reshape(-1)


def _attention_launch(draw: Draw, heads: int, time: int):
    q, k, v = (draw.integers(name, -1, 2, heads, time, 64) for name in ("q", "k", "v"))
    return (heads,), {"q": q, "k": k, "v": v, "out": draw.blank("out", heads, time, 64)}


def _masked_attention(a: Any) -> None:
    q, k, v = (_matrix(a, name, a.grid[0], 32, 64) for name in ("q", "k", "v"))
    out = np.tril(q @ k.swapaxes(1, 2)) @ v
    a.out[: out.size] = out.reshape(-1)


def _softmax_attention_launch(draw: Draw, blocks: int, keys: int):
    given = {"q": draw.normal("q", blocks * 32, 64), "k": draw.normal("k", keys, 64)}
    given |= {"v": draw.normal("v", keys, 64), "out": draw.blank("out", blocks * 32, 64)}
    return (blocks,), {**given, "keys": keys, "scale": 0.125}


def _softmax_attention(a: Any) -> None:
    q, k, v = (_matrix(a, name, -1, 64) for name in ("q", "k", "v"))
    weights = np.exp(q @ k.T / 8)
    out = (weights / weights.sum(1, keepdims=True)) @ v
    a.out[: out.size] = out.reshape(-1)


def _linear_attention_launch(draw: Draw, heads: int, chunks: int):
    _, given = _attention_launch(draw, heads, chunks * 32)
    return (heads,), {**given, "state": draw.blank("state", heads, 64, 64), "chunks": chunks}


def _linear_attention(decay: float):
    def expected(a: Any) -> None:
        # One token at a time; the decay is that of a chunk.
        heads, length = a.grid[0], 32 * a.chunks
        q, k, v = (_matrix(a, name, heads, length, 64) for name in ("q", "k", "v"))
        old, new = np.zeros((2, heads, 64, 64))
        out = np.zeros((heads, length, 64))
        for t in range(length):
            if t % 32 == 0:
                old, new = decay * old + new, np.zeros_like(new)
            new += k[:, t, :, None] * v[:, t, None, :]
            out[:, t] = np.einsum("hk,hkv->hv", q[:, t], old + new)
        state = decay * old + new
        a.out[: out.size] = out.reshape(-1)
        a.state[: state.size] = state.reshape(-1)

    return expected


_SHAPES = ((32, 48, 32), (1, 48, 64), (40, 50, 96), (17, 5, 32), (32, 48, 128))
_ENDING_K = ((1, 1, 1), (40, 50, 33), (17, 5, 100), (65, 97, 16))
_TRANSPOSED = {"ta": (True, False), "tb": (False, True), "ta_tb": (True, True)}

# arch35's compiler fills what a mask leaves out in a buffer that nothing reads, and multiplies with
# what L1 held.
_NOT_FILLED = {"arch35": "never-written memory reaches an output"}


def _matmul_examples(name: str) -> tuple[Example, Example]:
    """With whole tiles of K, and with a K that ends inside one."""
    transposed = _TRANSPOSED.get(name.partition("_")[2], (False, False))
    whole = Example(
        f"matmul_{name}",
        _matmul_launch,
        _SHAPES,
        _matmul(*transposed),
        interpreter=_interpreter(name),
    )
    miscompiled = _NOT_FILLED if any(transposed) else {}
    ending = dataclasses.replace(whole, sizes=_ENDING_K, label="ending_k", miscompiled=miscompiled)
    return whole, ending


EXAMPLES = (
    *(
        example
        for name in (
            *("fp16", "fp16_ta", "bf16_tb", "bf16_ta_tb", "fp32", "fp32_ta", "fp32_tb"),
            *("fp32_ta_tb", "hf32"),
        )
        for example in _matmul_examples(name)
    ),
    Example(
        "matmul_fp32",
        _matmul_launch,
        ((40, 50, 33, 0), (32, 48, 128, 0)),
        _matmul(False, False),
        Tolerance(32, "sums of 128 products of size 1 in another order", 4.0),
        label="normal",
    ),
    Example("product_fp16_fp32", _product_launch, ((64, 48, 96),), _product),
    Example("product_i8_i32", _product_launch, ((64, 48, 96),), _product),
    Example("batched_product_fp16", _batched_launch, ((2, 32),), _batched),
    Example("sums_of_products_fp16", _sums_launch, ((1, 1), (2, 3), (3, 2)), _sums),
    *(
        Example(
            f"linear_{t}",
            _linear_launch,
            ((64, 48, 32),),
            _linear,
            interpreter=_interpreter(t),
        )
        for t in ("fp32", "fp16", "bf16")
    ),
    *(
        Example(f"scaled_operand_{t}", _scaled_launch, ((32, 48),), _scaled)
        for t in ("fp16", "fp32")
    ),
    *(
        Example(
            f"masked_attention_{t}",
            _attention_launch,
            ((1, 32), (3, 32)),
            _masked_attention,
            interpreter=_interpreter(t),
        )
        for t in ("fp32", "fp16", "bf16")
    ),
    *(
        Example(
            "softmax_attention_fp16",
            _softmax_attention_launch,
            sizes,
            _softmax_attention,
            Tolerance(2**14, "the weights are rounded to fp16: half a spacing of 2^-11", 1.0),
            label=label,
            miscompiled=miscompiled,
        )
        for label, sizes, miscompiled in (
            ("", ((1, 32), (2, 96)), {}),
            ("ending_keys", ((1, 1), (2, 70)), _NOT_FILLED),
        )
    ),
    *(
        Example(
            f"{name}_linear_attention_{t}",
            _linear_attention_launch,
            ((1, 1), (2, 3)),
            _linear_attention(decay),
            interpreter=_interpreter(t),
            # Of `state += tl.dot(...)` only the accumulator is left: what the loop multiplies with
            # is memory that nothing writes.
            miscompiled={"arch32": "memref.alloc .*nothing writes"} if decay == 1.0 else {},
        )
        for name, decay in (("plain", 1.0), ("decaying", 0.5))
        for t in ("fp16", "bf16")
    ),
)

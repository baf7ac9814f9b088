"""What Ascend's compilers do not take, and what to write instead.

Measured with triton-ascend 3.2.0 and ascendnpu-ir 1.2.0.
"""

import re

RULES = {
    "split": (
        "a tensor with a second user is split: its parts get 32-byte rows of their own. Split the "
        "raw load before anything else uses it, then apply the rest to the halves"
    ),
    "accumulator": (
        "one tl.dot accumulator is carried through two loops: keep one accumulator per loop level "
        "and add the inner result to the outer one"
    ),
    "operand": (
        "one tensor is both operands of tl.dot, which arch35's compiler refuses: load it twice"
    ),
    "assembly": (
        "inline assembly takes 1-D tensors only, and is another device's: write the operation in "
        "Triton"
    ),
    "fp64": "fp64 does not exist on Ascend's vector and cube units: use fp32",
    "tf32": "input_precision 'tf32' does not exist on Ascend: use 'ieee' or 'hf32'",
    "grid": (
        "a grid must have 1 to 65535 programs: launch one program per core and let it loop over "
        "the work"
    ),
    "store": "a store through a tensor descriptor does not cast: cast to the descriptor's type",
    "overflow": "use smaller tiles, or let fewer tiles live at the same time",
}

# Patterns in what the frontend or an op says -> rule.
_MESSAGES = (
    (r"but got fp64", "fp64"),
    (r"input_precision == tf32", "tf32"),
    (r"grid of \S+: got", "grid"),
    (r"descriptor_store' op tensor descriptor block and tensor types must match", "store"),
)


def by_message(text: str) -> list[str]:
    """Names of the rules that a message of the frontend, or of an op, is about."""
    return [name for pattern, name in _MESSAGES if re.search(pattern, text)]


def line(name: str) -> str:
    """The line of a report that states a rule."""
    return f"rule: {RULES[name]}"

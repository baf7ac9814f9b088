"""Kernels whose point is control: grids, loops over tasks, carried state, scalars from memory."""

import triton
import triton.language as tl


@triton.jit
def grid_2d(out_ptr, BLOCK: tl.constexpr):
    # Each program writes its coordinates and the grid's extents.
    x, y = tl.program_id(0), tl.program_id(1)
    place = (x * tl.num_programs(1) + y) * BLOCK
    value = 100 * x + y
    tl.store(out_ptr + place + tl.arange(0, BLOCK), value + tl.zeros((BLOCK,), tl.int32))


@triton.jit
def grid_3d(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    matrix = (x * tl.num_programs(1) + y) * size
    offsets = z * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    value = tl.load(x_ptr + matrix + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + matrix + offsets, value * 2.0 + z, mask=mask)


@triton.jit
def persistent(x_ptr, out_ptr, size, tasks, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    for task in range(tl.program_id(0), tasks, PROGRAMS):
        offsets = task * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < size
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
        tl.store(out_ptr + offsets, x * x + task, mask=mask)


@triton.jit
def recurrence(x_ptr, decay_ptr, out_ptr, last_ptr, length, BLOCK: tl.constexpr):
    # state = decay[t] * state + x[t]; one sequence of vectors per program.
    sequence = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    state = tl.zeros((BLOCK,), tl.float32)
    for t in range(length):
        place = (sequence * length + t) * BLOCK + column
        decay = tl.load(decay_ptr + sequence * length + t)
        state = decay * state + tl.load(x_ptr + place)
        tl.store(out_ptr + place, state)
    tl.store(last_ptr + sequence * BLOCK + column, state)


@triton.jit
def rows_of_a_table(x_ptr, start_ptr, length_ptr, out_ptr, BLOCK: tl.constexpr):
    # Program i copies length[i] elements from start[i]: both are read as scalars.
    program = tl.program_id(0)
    start = tl.load(start_ptr + program)
    length = tl.load(length_ptr + program)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + start + offsets, mask=offsets < length, other=-1.0)
    tl.store(out_ptr + program * BLOCK + offsets, x)


@triton.jit
def branch(x_ptr, out_ptr, threshold, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    offsets = program * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    if program < threshold:  # noqa: SIM108
        x = x + 1.0
    else:
        x = x * 3.0
    tl.store(out_ptr + offsets, x)


@triton.jit
def blocked_sum(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    # A row per program, in blocks, into one vector of partial sums.
    row = tl.program_id(0)
    partial = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        partial += tl.load(x_ptr + row * size + offsets, mask=offsets < size, other=0.0)
    tl.store(out_ptr + row, tl.sum(partial, 0))


@triton.jit
def halving(x_ptr, out_ptr, BLOCK: tl.constexpr):
    # The trip count is read from memory.
    program = tl.program_id(0)
    remaining = tl.load(x_ptr + program)
    steps = 0
    while remaining > 1:
        remaining = remaining // 2
        steps += 1
    tl.store(out_ptr + program * BLOCK + tl.arange(0, BLOCK), steps + tl.arange(0, BLOCK))

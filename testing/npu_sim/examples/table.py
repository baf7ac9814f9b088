"""All examples."""

from testing.npu_sim.examples import control, cube, elementwise, integers, movement, rows

EXAMPLES = (
    *elementwise.EXAMPLES,
    *integers.EXAMPLES,
    *movement.EXAMPLES,
    *rows.EXAMPLES,
    *control.EXAMPLES,
    *cube.EXAMPLES,
)

"""All examples."""

from testing.npu_sim.examples import control, cube, elementwise, movement, rows

EXAMPLES = (
    *elementwise.EXAMPLES,
    *movement.EXAMPLES,
    *rows.EXAMPLES,
    *control.EXAMPLES,
    *cube.EXAMPLES,
)

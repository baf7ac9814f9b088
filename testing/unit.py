"""The device that an op's unit test runs on.

`DEVICE` is the one that OPS_TEST_DEVICE names, which op_test_suite sets, or the interpreter. When
it is not there the import raises DeviceNotFoundError, and the test fails. Without Bazel:

    TRITON_INTERPRET=1 python3 -m ops.mamba3_siso_fwd.op_test
    OPS_TEST_DEVICE=cuda python3 -m ops.mamba3_siso_fwd.op_test
"""

import os

from testing import devices

DEVICE = devices.require(os.environ.get("OPS_TEST_DEVICE", "cpu-reference"))

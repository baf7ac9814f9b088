"""For unit tests of calls like earlier ones, which are not checked and planned again: see
ops/common/calls.py."""

from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import torch
from absl.testing import parameterized

from ops.common import launch
from testing import unit

_Result = TypeVar("_Result")


def supported(device: str) -> bool:
    """Whether calls on that device are repeated at all."""
    return launch.repeatable(torch.empty(0, device=device))


class TestCase(parameterized.TestCase):
    """Tests of repeated calls, on the device that the target is for.

    Skipped where each call is planned, on NPUs and with a Triton that launch.Repeated was not run
    with: nothing is repeated there that could go wrong.
    """

    def setUp(self):
        super().setUp()
        if not supported(unit.DEVICE.torch_device):
            self.skipTest("each call is planned on this device")


def planned(call: Callable[[Any], _Result], x: Any) -> _Result:
    """call(x), checked and planned whatever was called before."""
    with launch.record():
        return call(x)


def repeated(call: Callable[[Any], _Result], x: Any) -> _Result:
    """call(x), which fails unless it is like an earlier one."""
    failure = AssertionError("planned and launched anew")
    with mock.patch.object(launch.Launch, "run", side_effect=failure):
        return call(x)

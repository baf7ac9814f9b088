"""Tests of the kernel's own sine, cosine and sigmoid against float64."""

import math

import torch
import triton
import triton.language as tl
from absl.testing import absltest, parameterized

from ops.common import launch
from ops.mamba3_siso_fwd import device_math
from testing import unit

_BLOCK = 1024


@triton.jit
def apply_all(
    x_ptr, sin_ptr, cos_ptr, sigmoid_ptr, power_ptr, BLOCK: tl.constexpr, GPU: tl.constexpr
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + index)
    sin, cos = device_math.sin_cos(x)
    tl.store(sin_ptr + index, sin)
    tl.store(cos_ptr + index, cos)
    tl.store(sigmoid_ptr + index, device_math.sigmoid(x, GPU))
    tl.store(power_ptr + index, device_math.power_of_two(tl.abs(x)))


def _apply(values, gpu=unit.DEVICE.name == "cuda"):
    """Values in fp32, and sin, cos, sigmoid and power_of_two of them, all in float64.

    gpu: the sigmoid of a GPU, by exp2, which any device can compute.
    """
    flat = torch.as_tensor(values, dtype=torch.float64).float()
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % _BLOCK), value=1.0)
    padded = padded.to(unit.DEVICE.torch_device)
    results = [torch.full_like(padded, math.nan) for _ in range(4)]
    names = ("sin_ptr", "cos_ptr", "sigmoid_ptr", "power_ptr")
    launch.Launch(
        kernel=apply_all,
        backend=unit.DEVICE.name,
        grid=(len(padded) // _BLOCK,),
        args={"x_ptr": padded, **dict(zip(names, results, strict=True))},
        constants={"BLOCK": _BLOCK, "GPU": gpu},
        options={},
    ).run()
    return [x.double().cpu()[: len(flat)] for x in (padded, *results)]


class SinCosTest(parameterized.TestCase):
    def _assert_close(self, values, bound):
        x, sin, cos, _, _ = _apply(values)
        self.assertLessEqual((sin - x.sin()).abs().max().item(), bound)
        self.assertLessEqual((cos - x.cos()).abs().max().item(), bound)

    @parameterized.parameters(
        (math.pi, 2.0**-22),
        (16 * math.pi, 2.0**-22),  # the contract's range
        (2**13 * math.pi, 2.0**-22),  # the documented limit
        (1e5, 2.0**-17),  # beyond: still a rotation
    )
    def test_error(self, limit, bound):
        self._assert_close(torch.linspace(-limit, limit, 200_000, dtype=torch.float64), bound)

    def test_beside_multiples_of_quarter_turns(self):
        # Down to one unit in the last place of theta, where sine or cosine is as small as it gets.
        centres = torch.arange(-64, 65, dtype=torch.float64).mul(math.pi / 2).float()
        values = [centres]
        for toward in (-math.inf, math.inf):
            step = centres
            for _ in range(8):
                step = torch.nextafter(step, torch.tensor(toward))
                values.append(step)
        values = torch.cat(values).double()
        self._assert_close(values, 2.0**-22)
        x, sin, cos, _, _ = _apply(values)
        self.assertTrue(torch.equal(sin.sign(), x.sin().sign()))
        sure = x.cos().abs() > 2.0**-24
        self.assertTrue(torch.equal(cos[sure].sign(), x.cos()[sure].sign()))

    def test_small_angles(self):
        values = [3e-4, -3e-4, 0.0, 1e-30, -1e-30, 1e-8, -1e-8]
        x, sin, cos, _, _ = _apply(values)
        self.assertTrue(torch.equal(sin.sign(), x.sign()))
        self.assertLess((sin - x.sin()).abs().max().item(), 2.0**-24 * 3e-4 + 1e-40)
        self.assertLessEqual((cos - x.cos()).abs().max().item(), 2.0**-22)

    def test_not_finite(self):
        _, sin, cos, _, _ = _apply([math.inf, -math.inf, math.nan])
        self.assertTrue(sin.isnan().all())
        self.assertTrue(cos.isnan().all())


class SigmoidTest(parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_relative_error(self, gpu):
        x, _, _, sigmoid, _ = _apply(torch.linspace(-87, 87, 50_000, dtype=torch.float64), gpu)
        relative = (sigmoid - x.sigmoid()).abs() / x.sigmoid()
        # A device computes exp(x) as 2^(x log2 e): rounding that exponent is off by |x| 2^-24,
        # relative to the result, and the rounded constant by |x| 2^-26 more. CUDA's ex2.approx is
        # good to 2^-22 and div.full to two units in the last place, 4 units of 2^-24 each; the sum
        # adds one. Measured on an H200: 1.005 times 9 + |x|.
        bound = (9 + 1.25 * x.abs()) * 2.0**-24
        self.assertLess((relative / bound).max().item(), 1.0)

    @parameterized.parameters(False, True)
    def test_far_out(self, gpu):
        _, _, _, sigmoid, _ = _apply([-1e4, -200.0, 200.0, 1e4, -math.inf, math.inf], gpu)
        self.assertEqual(sigmoid.tolist(), [0.0, 0.0, 1.0, 1.0, 0.0, 1.0])


@triton.jit
def apply_exponents(x_ptr, n_ptr, exponent_ptr, power_ptr, num):
    for i in range(0, num):
        tl.store(exponent_ptr + i, device_math.exponent_of(tl.load(x_ptr + i)))
        tl.store(power_ptr + i, device_math.two_to(tl.load(n_ptr + i)))


class ExponentTest(absltest.TestCase):
    def test_of_scalars(self):
        values = [1.0, 1.5, 3.999, 4.0, 2.0**-60, 1e30, 2.0**-126, 0.0, math.inf]
        exponents = [0, 0, 1, 2, -60, 99, -126, -127, 128]
        numbers = [0, 1, -1, 127, 128, 2000, -126, -127, -2000]
        powers = [1.0, 2.0, 0.5, 2.0**127, 2.0**127, 2.0**127, 2.0**-126, 0.0, 0.0]
        x = torch.tensor(values, device=unit.DEVICE.torch_device)
        n = torch.tensor(numbers, dtype=torch.int32, device=unit.DEVICE.torch_device)
        exponent, power = torch.empty_like(n), torch.empty_like(x)
        launch.Launch(
            kernel=apply_exponents,
            backend=unit.DEVICE.name,
            grid=(1,),
            args={
                "x_ptr": x,
                "n_ptr": n,
                "exponent_ptr": exponent,
                "power_ptr": power,
                "num": len(values),
            },
            constants={},
            options={},
        ).run()
        self.assertEqual(exponent.tolist(), exponents)
        self.assertEqual(power.tolist(), powers)


class PowerOfTwoTest(absltest.TestCase):
    def test_rounds_down_to_a_power_of_two(self):
        values = [1.0, 1.5, 2.0, 3.999, 4.0, 1e-30, 1e30, 0.7, 8.673617379884035e-19]
        x, _, _, _, power = _apply(values)
        expected = torch.exp2(torch.floor(torch.log2(x)))
        self.assertEqual(power.tolist(), expected.tolist())


if __name__ == "__main__":
    absltest.main()

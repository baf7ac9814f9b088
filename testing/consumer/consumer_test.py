"""A workspace that depends on ascend_ops calls an op of it and one of its own."""

import torch
from absl.testing import absltest

from ops.mamba3_siso_fwd import mamba3_siso_fwd_kernel
from ops.swiglu.kernel import swiglu


class ConsumerTest(absltest.TestCase):
    def test_both_ops_run(self):
        torch.manual_seed(0)
        b, s, heads, k_dim, v_dim = 1, 5, 2, 4, 6
        half = {"dtype": torch.float16}
        v = torch.randn(b, s, heads, v_dim, **half)
        out = mamba3_siso_fwd_kernel(
            q=torch.randn(b, s, 1, k_dim, **half),
            k=torch.randn(b, s, 1, k_dim, **half),
            v=v,
            adt=-torch.rand(b, heads, s),
            dt=torch.rand(b, heads, s),
            trap=torch.zeros(b, heads, s),
            q_bias=torch.zeros(heads, k_dim),
            k_bias=torch.zeros(heads, k_dim),
            angles=torch.zeros(b, s, heads, 2),
            chunk_size=32,
        )
        self.assertEqual((out.shape, out.dtype), (v.shape, torch.float16))
        gated = swiglu(out, v)
        expected = torch.nn.functional.silu(out.double()) * v.double()
        torch.testing.assert_close(gated.double(), expected, rtol=2**-10, atol=1e-6)


if __name__ == "__main__":
    absltest.main()

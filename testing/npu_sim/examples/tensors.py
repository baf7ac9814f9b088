"""NumPy arrays as tensors on the same memory."""

import ml_dtypes
import numpy as np
import torch


def tensor(values: np.ndarray) -> torch.Tensor:
    """torch.from_numpy, with bf16."""
    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)

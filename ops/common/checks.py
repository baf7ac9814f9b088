"""Argument checks whose errors name the argument, what it got and what is allowed."""

from collections.abc import Sequence

import torch


def check_tensor(name: str, value: object) -> torch.Tensor:
    """Raises TypeError unless value is a torch.Tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: got {type(value).__name__}, allowed: torch.Tensor")
    return value


def check_dtype(name: str, tensor: torch.Tensor, allowed: Sequence[torch.dtype]) -> None:
    """Raises TypeError unless the tensor's dtype is one of `allowed`."""
    if tensor.dtype not in allowed:
        raise TypeError(f"{name}: got dtype {tensor.dtype}, allowed: {_join(allowed)}")


def check_floating(name: str, tensor: torch.Tensor) -> None:
    """Raises TypeError unless the tensor's dtype is a real floating-point one."""
    if not tensor.dtype.is_floating_point:
        raise TypeError(f"{name}: got dtype {tensor.dtype}, allowed: any floating-point dtype")


def check_dims(name: str, tensor: torch.Tensor, axes: str) -> None:
    """Raises ValueError unless the tensor has as many axes as, say, '[B, S, H]' names."""
    expected = axes.count(",") + 1
    if tensor.dim() != expected:
        raise ValueError(
            f"{name}: got {tensor.dim()} dimensions {list(tensor.shape)}, "
            f"allowed: {expected}, {axes}"
        )


def check_shape(name: str, tensor: torch.Tensor, shape: Sequence[int], axes: str) -> None:
    """Raises ValueError unless the tensor's shape is `shape`; `axes` names it, e.g. '[B, S, H]'."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name}: got shape {list(tensor.shape)}, allowed: {axes} = {list(shape)}")


def check_same_device(name: str, tensor: torch.Tensor, device: torch.device, of: str) -> None:
    """Raises ValueError unless the tensor is on `device`, the device of the argument `of`."""
    if tensor.device != device:
        raise ValueError(
            f"{name}: got device {tensor.device}, allowed: {device}, the device of {of}"
        )


def check_strided(name: str, tensor: torch.Tensor) -> None:
    """Raises TypeError for sparse and other layouts without strides."""
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: got layout {tensor.layout}, allowed: torch.strided")


def check_range(name: str, value: int, low: int, high: int | None = None) -> None:
    """Raises ValueError unless low <= value <= high (no upper limit when None)."""
    if value < low or (high is not None and value > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        raise ValueError(f"{name}: got {value}, allowed: {allowed}")


def check_choice(name: str, value: object, allowed: Sequence[int]) -> None:
    """Raises TypeError for anything but an int (a bool is none), ValueError for another int."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"{name}: got {value!r} of type {type(value).__name__}, "
            f"allowed: the int {_join(allowed, ' or ')}"
        )
    if value not in allowed:
        raise ValueError(f"{name}: got {value}, allowed: {_join(allowed, ' or ')}")


def _join(values: Sequence[object], separator: str = ", ") -> str:
    return separator.join(str(value) for value in values)

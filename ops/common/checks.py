"""Argument checks whose errors name the argument, what it got and what is allowed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

_FLOAT32_MAX = torch.finfo(torch.float32).max


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


def check_written(name: str, tensor: torch.Tensor) -> None:
    """For a tensor that a call changes: raises ValueError for a view with PyTorch's negative or
    conjugate bit, whose memory holds other values than it shows."""
    if torch.compiler.is_compiling():  # Dynamo knows neither question
        return
    for bit, is_set in (("negative", tensor.is_neg()), ("conjugate", tensor.is_conj())):
        if is_set:
            raise ValueError(
                f"{name}: got a view with PyTorch's {bit} bit, which cannot be written in place; "
                "allowed: views without it"
            )


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
        raise ValueError(f"{name}: got {_written(value)}, allowed: {_join(allowed, ' or ')}")


def check_bool(name: str, value: object) -> None:
    """Raises TypeError for anything but True and False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: got {value!r} of type {type(value).__name__}, allowed: a bool")


def check_number(name: str, value: object) -> float:
    """Raises TypeError for anything but an int or a float, ValueError for what is no finite number
    in float32, as which kernels get it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{name}: got {value!r} of type {type(value).__name__}, allowed: an int or a float"
        )
    if not abs(value) <= _FLOAT32_MAX:
        raise ValueError(
            f"{name}: got {_written(value)}, allowed: finite float32 numbers, "
            f"{-_FLOAT32_MAX:.8g} to {_FLOAT32_MAX:.8g}"
        )
    return float(value)


def check_dtype_of(
    name: str, tensor: torch.Tensor, of: str, dtype: torch.dtype, also: Sequence[torch.dtype] = ()
) -> None:
    """Raises TypeError unless the tensor has the dtype of the argument `of`, or one of `also`."""
    if tensor.dtype == dtype or tensor.dtype in also:
        return
    others = "".join(f" or {each}" for each in also if each != dtype)
    raise TypeError(
        f"{name}: got dtype {tensor.dtype}, allowed: {dtype}, the dtype of {of}{others}"
    )


def check_options(
    function: str, given: Mapping[str, Any], only: Mapping[str, Any], also: Sequence[str] = ()
) -> None:
    """For keyword arguments that a function takes so that callers may pass their defaults.

    Raises:
        TypeError: one that is not in `only`; the message names `also`, which the caller took out.
        NotImplementedError: one with another value than there.
    """
    for name, value in given.items():
        if name not in only:
            known = _join((*also, *only))
            raise TypeError(
                f"{function}: got an argument {name!r}, allowed beside its own: {known}"
            )
        if value is not only[name]:
            raise NotImplementedError(
                f"{name}: got {_short(value)}, allowed: {only[name]}; {function} has no other"
            )


def check_no_gradients(function: str, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> None:
    """Raises NotImplementedError for a tensor that requires a gradient while gradients are on."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors:
        if tensor is not None and tensor.requires_grad:
            raise NotImplementedError(
                f"{name}: got a tensor that requires a gradient, but {function} has no backward; "
                "allowed: tensors after detach(), or a call under torch.no_grad()"
            )


def check_first_derivative(function: str) -> None:
    """Raises NotImplementedError in a backward that is to be differentiated itself."""
    if torch.is_grad_enabled():
        raise NotImplementedError(
            f"create_graph: got True, a second derivative, which {function} has not; allowed: False"
        )


def check_no_tangents(function: str, arguments: Mapping[str, object]) -> None:
    """Raises NotImplementedError for a tensor with a tangent (torch.func.jvp, forward_ad)."""
    # Else the results would have no tangent, or zero. No tensor has one outside a level, which
    # torch tells in no public way that is as fast (0.1 us).
    if forward_ad._current_level < 0:
        return
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise NotImplementedError(
                f"{name}: got a tensor with a tangent, but {function} has no forward-mode "
                "derivative; allowed: tensors without one"
            )


def _written(value: float) -> str:
    # Python refuses to write integers of more than 4300 digits.
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"an int of {value.bit_length()} bits"
    return str(value)


def _short(value: object) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return type(value).__name__


def _join(values: Iterable[object], separator: str = ", ") -> str:
    return separator.join(str(value) for value in values)

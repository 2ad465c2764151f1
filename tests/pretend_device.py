"""A device that nobody here has: tensors that say they are on it, refuse float64 as Apple's do, and count copies.

    with PretendDevice() as device:
        parameter = nn.Parameter(device.tensor(torch.ones(3)))
        ...
        device.reads, device.writes

`reads` are copies to the host, for each of which it would wait; `writes` are copies of host memory to the device.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = torch.device("mps", 0)
_aten = torch.ops.aten


class Pretend(torch.Tensor):
    """A tensor on the pretend device, whose numbers lie in `inner`, on the CPU."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=NAME,
            requires_grad=False,
        )
        made.inner = inner
        return made

    def __init__(self, inner):
        pass

    def __repr__(self):
        return f"Pretend({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("a pretend tensor is used outside of its device")


class _Makers(TorchFunctionMode):
    """`torch.tensor` and the like, which torch carries out before a dispatch mode hears of them."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Some methods ask for the device's own guard before they are dispatched; those are carried out here."""
        kwargs = dict(kwargs or {})
        target = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and target is not None and torch.device(target).type == NAME.type:
            if isinstance(args[0], torch.Tensor):
                return args[0].to(**kwargs)
            made = func(*args, **(kwargs | {"device": "cpu"}))
            self.device.writes += 1
            return self.device.checked(made)
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(args[0], Pretend):
            inner = tree_map(lambda x: x.inner if isinstance(x, Pretend) else x, args)
            made = func(*inner)
            return self.device.checked(made) if isinstance(made, torch.Tensor) else made
        if func is torch.Tensor.__invert__ and isinstance(args[0], Pretend):
            return torch.bitwise_not(args[0])
        if func in _READERS and isinstance(args[0], Pretend):
            self.device.reads += 1
            return func(args[0].inner, *args[1:], **kwargs)
        return func(*args, **kwargs)


_READERS = {getattr(torch.Tensor, name) for name in ("item", "tolist", "__int__", "__float__", "__bool__", "__index__")}


class PretendDevice(TorchDispatchMode):
    def __enter__(self):
        self.makers = _Makers(self)
        self.makers.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.makers.__exit__(*error)

    def checked(self, inner):
        if inner.dtype == torch.float64 and not self.float64:
            raise TypeError("Cannot convert a pretend tensor to float64: the device does not support it")
        return Pretend(inner)

    def __init__(self, *, float64=False):
        super().__init__()
        self.float64 = float64
        self.reads = self.writes = self.launches = 0

    def tensor(self, values):
        return Pretend(values.detach().clone())

    def forget(self):
        self.reads = self.writes = self.launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        flat, _ = tree_flatten((args, kwargs))
        ours = [x for x in flat if isinstance(x, Pretend)]
        target = kwargs.get("device")
        there = bool(ours)
        if target is not None:
            there = torch.device(target).type == NAME.type
            kwargs["device"] = torch.device("cpu") if there else target
            if func is _aten._to_copy.default:
                self.writes += there and not ours
                self.reads += bool(ours) and not there
        if func is _aten._local_scalar_dense.default and ours:
            self.reads += 1
        if func is _aten.copy_.default:
            self.reads += not isinstance(args[0], Pretend) and isinstance(args[1], Pretend)
            self.writes += isinstance(args[0], Pretend) and not isinstance(args[1], Pretend)
            there = isinstance(args[0], Pretend)
        self.launches += there
        known = {id(x.inner): x for x in ours}
        inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, Pretend) else x, (args, kwargs))
        made = func(*inner_args, **inner_kwargs)
        if not there:
            return made

        def wrapped(x):
            if not isinstance(x, torch.Tensor):
                return x
            return known[id(x)] if id(x) in known else self.checked(x)

        return tree_map(wrapped, made)

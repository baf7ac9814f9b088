"""Small modules written by hand, in the form of the compiler's output: for tests.

kernel = Kernel("AIV", arguments=2)
x = kernel.buffer("ub", 0, 64)
kernel.load(kernel.tensor(0, 64), x)
kernel.set_flag("MTE2", "V", 0)
program.Program.parse(module(kernel))
"""

from collections.abc import Callable, Sequence

_TARGET = {
    "CUBE_CORE_COUNT": 24,
    "VECTOR_CORE_COUNT": 48,
    "UB_SIZE": 8 * (192 << 10),
    "L1_SIZE": 8 * (512 << 10),
    "L0A_SIZE": 8 * (64 << 10),
    "L0B_SIZE": 8 * (64 << 10),
    "L0C_SIZE": 8 * (128 << 10),
}
_HIDDEN = ("ffts_base_address", "sync_block_lock", "workspace")
_GM = "#hivm.address_space<gm>"


class Kernel:
    """Writes the body of one entry function, operation by operation.

    core: AIC or AIV. arguments: how many tensors of f32 it takes.
    """

    def __init__(self, core: str, arguments: int = 1):
        self.core = core
        self.arguments = arguments
        self._lines: list[str] = []
        self._values = 0
        self._types: dict[str, str] = {}

    def line(self, text: str) -> None:
        """An operation in the generic form."""
        self._lines.append(text)

    def _new(self, text: str, kind: str) -> str:
        self._values += 1
        name = f"%v{self._values}"
        self._types[name] = kind
        self.line(f"{name} = {text}")
        return name

    def number(self, value: int, kind: str = "i64") -> str:
        return self._new(f'"arith.constant"() <{{value = {value} : {kind}}}> : () -> {kind}', kind)

    def real(self, value: float) -> str:
        return self._new(f'"arith.constant"() <{{value = {value:e} : f32}}> : () -> f32', "f32")

    def buffer(self, space: str, address: int, count: int, element: str = "f32") -> str:
        kind = f"memref<{count}x{element}, #hivm.address_space<{space}>>"
        where = self.number(address)
        return self._new(
            '"hivm.hir.pointer_cast"'
            f"({where}) <{{operandSegmentSizes = array<i32: 1, 0>}}> : (i64) -> {kind}",
            kind,
        )

    def tensor(self, argument: int, count: int, offset: int = 0) -> str:
        """`count` elements of an argument from `offset` on."""
        return self._global(f"%tensor{argument}", f"memref<?xf32, {_GM}>", count, offset)

    def workspace(self, count: int, part: str = "") -> str:
        """`count` f32 of the exchange memory: the first ones of the block, or its part-th ones.

        A block has two parts.
        """
        block = self._new('"hivm.hir.get_block_idx"() : () -> i64', "i64")
        where = self._product(block, 2 * 4 * count if part else 4 * count)
        if part:
            where = self._sum(where, self._product(part, 4 * count))
        start = self._new(f'"arith.index_cast"({where}) : (i64) -> index', "index")
        kind = f"memref<{count}xf32, {_GM}>"
        return self._new(
            f'"memref.view"(%hidden2, {start}) : (memref<?xi8, {_GM}>, index) -> {kind}', kind
        )

    def _product(self, first: str, second: int) -> str:
        factor = self.number(second)
        return self._new(f'"arith.muli"({first}, {factor}) : (i64, i64) -> i64', "i64")

    def _sum(self, first: str, second: str) -> str:
        return self._new(f'"arith.addi"({first}, {second}) : (i64, i64) -> i64', "i64")

    def sub_block_index(self) -> str:
        return self._new('"hivm.hir.get_sub_block_idx"() : () -> i64', "i64")

    def as_real(self, number: str) -> str:
        return self._new(f'"arith.sitofp"({number}) : (i64) -> f32', "f32")

    def _global(self, base: str, base_kind: str, count: int, offset: int) -> str:
        kind = f"memref<{count}xf32, strided<[1], offset: {offset}>, {_GM}>"
        return self._new(
            f'"memref.reinterpret_cast"({base}) <{{operandSegmentSizes = array<i32: 1, 0, 0, 0>, '
            f"static_offsets = array<i64: {offset}>, static_sizes = array<i64: {count}>, "
            f"static_strides = array<i64: 1>}}> : ({base_kind}) -> {kind}",
            kind,
        )

    def _do(self, name: str, operands: Sequence[str], attributes: str = "") -> None:
        kinds = ", ".join(self._types[operand] for operand in operands)
        properties = f" <{{{attributes}}}>" if attributes else ""
        self.line(f'"{name}"({", ".join(operands)}){properties} : ({kinds}) -> ()')

    def load(self, source: str, target: str) -> None:
        self._do(
            "hivm.hir.load",
            (source, target),
            "init_out_buffer = false, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0>",
        )

    def store(self, source: str, target: str) -> None:
        self._do("hivm.hir.store", (source, target))

    def atomic_add(self, source: str, target: str) -> None:
        self._do("hivm.hir.store", (source, target), "atomic_kind = #hivm.atomic_kind<add>")

    def scalar_store(self, value: str, target: str, index: int) -> None:
        """By the scalar unit itself."""
        position = self.number(index, "index")
        self._do("memref.store", (value, target, position), "nontemporal = false")

    def scalar_load(self, source: str, index: int) -> str:
        position = self.number(index, "index")
        return self._new(
            f'"memref.load"({source}, {position}) : ({self._types[source]}, index) -> f32', "f32"
        )

    def when(self, condition: str, body: Callable[[], None]) -> None:
        """Only if the i1 is set."""
        self.line(f'"scf.if"({condition}) ({{')
        body()
        self.line('"scf.yield"() : () -> ()\n    }, {\n    }) : (i1) -> ()')

    def block_is(self, number: int) -> str:
        block = self._new('"hivm.hir.get_block_idx"() : () -> i64', "i64")
        wanted = self.number(number)
        return self._new(
            f'"arith.cmpi"({block}, {wanted}) <{{predicate = 0 : i64}}> : (i64, i64) -> i1', "i1"
        )

    def add(self, first: str, second: str, target: str, temporary: str = "") -> None:
        extra = int(bool(temporary))
        self._do(
            "hivm.hir.vadd",
            (first, second, target) + (temporary,) * extra,
            "broadcast = array<i64>, "
            f"operandSegmentSizes = array<i32: 2, 1, {extra}>, transpose = array<i64>",
        )

    def fill(self, value: str, target: str) -> None:
        self._do("hivm.hir.vbrc", (value, target), "broadcast_dims = array<i64>")

    def set_flag(self, first: str, second: str, event: int) -> None:
        self._flag("set_flag", first, second, event)

    def wait_flag(self, first: str, second: str, event: int) -> None:
        self._flag("wait_flag", first, second, event)

    def order(self, first: str, second: str, event: int) -> None:
        """What pipe `first` has done comes before what pipe `second` does next."""
        self.set_flag(first, second, event)
        self.wait_flag(first, second, event)

    def _flag(self, name: str, first: str, second: str, event: int) -> None:
        self.line(
            f'"hivm.hir.{name}"() <{{set_pipe = #hivm.pipe<PIPE_{first}>, static_event_id = '
            f"#hivm.event<EVENT_ID{event}>, wait_pipe = #hivm.pipe<PIPE_{second}>}}> : () -> ()"
        )

    def barrier(self, pipe: str) -> None:
        self.line(f'"hivm.hir.pipe_barrier"() <{{pipe = #hivm.pipe<PIPE_{pipe}>}}> : () -> ()')

    def set_block_flag(self, pipe: str, flag: int) -> None:
        self._block_flag("sync_block_set", f"tpipe = #hivm.pipe<PIPE_{pipe}>", "S", flag)

    def wait_block_flag(self, flag: int) -> None:
        self._block_flag("sync_block_wait", "tpipe = #hivm.pipe<PIPE_S>", "S", flag)

    def _block_flag(self, name: str, tpipe: str, pipe: str, flag: int) -> None:
        kind = "CUBE" if self.core == "AIC" else "VECTOR"
        self.line(
            f'"hivm.hir.{name}"() <{{operandSegmentSizes = array<i32: 0, 0>, pipe = '
            f"#hivm.pipe<PIPE_{pipe}>, static_flag_id = {flag} : i64, tcore_type = "
            f"#hivm.tcore_type<{kind}>, {tpipe}}}> : () -> ()"
        )

    def function(self, name: str) -> str:
        """The whole func.func."""
        names = [f"%hidden{index}" for index in range(len(_HIDDEN))]
        kinds = ["i64", f"memref<?xi8, {_GM}>", f"memref<?xi8, {_GM}>"]
        names += [f"%tensor{index}" for index in range(self.arguments)]
        kinds += [f"memref<?xf32, {_GM}>"] * self.arguments
        names += ["%grid_x", "%grid_y", "%grid_z"]
        kinds += ["i32"] * 3
        roles = [f"{{hacc.arg_type = #hacc.arg_type<{role}>}}" for role in _HIDDEN]
        roles += ["{}"] * (self.arguments + 3)
        arguments = ", ".join(f"{a}: {b}" for a, b in zip(names, kinds, strict=True))
        body = "\n".join(f"    {line}" for line in self._lines)
        return (
            f'  "func.func"() <{{arg_attrs = [{", ".join(roles)}], function_type = '
            f'({", ".join(kinds)}) -> (), sym_name = "{name}"}}> ({{\n'
            f"  ^bb0({arguments}):\n{body}\n"
            '    "func.return"() : () -> ()\n'
            f"  }}) {{hacc.entry, hivm.func_core_type = #hivm.func_core_type<{self.core}>}} "
            ": () -> ()\n"
        )


def module(*kernels: Kernel, workspace_bytes: int = 0) -> str:
    """The text of a module: one kernel, or a cube core's and a vector core's."""
    entries = ", ".join(
        f'#dlti.dl_entry<"{name}", {value} : i32>' for name, value in _TARGET.items()
    )
    workspace = ""
    if workspace_bytes:
        workspace = (
            '  "func.func"() <{function_type = () -> index, '
            'sym_name = "kernel_infer_workspace_shape_function"}> ({\n'
            f'    %size = "arith.constant"() <{{value = {workspace_bytes} : index}}> '
            ": () -> index\n"
            '    "func.return"(%size) : (index) -> ()\n'
            "  }) : () -> ()\n"
        )
    functions = "".join(kernel.function(f"kernel_{kernel.core}") for kernel in kernels)
    return (
        f'"builtin.module"() ({{\n{workspace}{functions}}}) {{dlti.target_system_spec = '
        f'#dlti.target_system_spec<"NPU" : #hacc.target_device_spec<{entries}>>}} : () -> ()\n'
    )

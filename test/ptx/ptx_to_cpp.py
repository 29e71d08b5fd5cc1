"""Writes the kernels of a PTX file as C++ that runs on the host, instruction by instruction.

What they mean is in machine.h. A kernel becomes a function of one thread that runs up to its next barrier, or to what
other threads may come before: an atomic operation, or a read past the L1 cache. Its registers live in a struct, and a
switch leads back to where it stopped.
"""

import re

from ptx_program import Register, UnknownPtx

CTYPES = {
    "pred": "bool", "f32": "float", "f64": "double", "b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t",
    "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t", "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t",
    "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t",
}  # fmt: skip
ALIGNMENT = 64  # of parameters and shared arrays, in bytes: what any of them may ask for
PLAIN = {"add", "sub", "neg", "abs", "min", "max", "and", "or", "xor", "not", "shr", "div", "fma", "selp"}
ROUNDED = {"rn", "approx", "ftz"}


def places(sizes):
    """Returns where each of these arrays begins, and how long all are."""
    begins, end = {}, 0
    for name, size in sizes:
        begins[name] = end
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return begins, end


def parts_of(operand):
    """The registers of "{a, b}", or the one of "a"."""
    return re.findall(r"[^{},\s]+", operand)


class Translation:
    def __init__(self, kernel):
        self.kernel = kernel
        self.params, self.param_bytes = places(kernel.params)
        self.shared, self.shared_bytes = places(kernel.shared)
        self.local, self.local_bytes = places(kernel.local)
        self.num_stops = 0

    def text(self):
        body = "\n".join(self.lines())
        fields = " ".join(
            f"{CTYPES[r.type]} {r.prefix[1:]}" + ("_;" if r.count is None else f"[{r.count}];")
            for r in self.kernel.registers
        )
        if self.local_bytes:
            fields += f" alignas(16) std::byte local[{self.local_bytes}];"
        sizes = ", ".join(str(size) for _, size in self.kernel.params)
        begins = ", ".join(str(self.params[name]) for name, _ in self.kernel.params)
        return f"""namespace {{
struct Thread_{self.kernel.name} : Thread {{ {fields} }};
void run_{self.kernel.name}(Block& block, Thread& thread) {{
auto& t = static_cast<Thread_{self.kernel.name}&>(thread);
switch (t.stop) {{
case 0:;
{body}
}}
}}
const Registered register_{self.kernel.name}({{"{self.kernel.name}", run_{self.kernel.name},
sizeof(Thread_{self.kernel.name}), {self.shared_bytes}, {self.param_bytes}, {{{sizes}}}, {{{begins}}}}});
}}
"""

    def lines(self):
        for item in self.kernel.body:
            if isinstance(item, Register):
                yield f"{CTYPES[item.type]} {item.prefix.removeprefix('%')}_;"
            elif isinstance(item, str):
                yield item if item in "{}" else f"{item.lstrip('$')};"
            else:
                try:
                    text = self.instruction(item)
                except (KeyError, ValueError, TypeError, IndexError) as error:
                    raise UnknownPtx(f"line {item.line}: {'.'.join(item.opcode)} {item.operands}: {error!r}") from error
                if item.guard:
                    negated, name = item.guard.startswith("!"), item.guard.lstrip("!")
                    text = f"if ({'!' * negated}{self.place(name)}) {{ {text} }}"
                yield text

    def place(self, name):
        """A register as a C++ variable."""
        if match := re.fullmatch(r"%([a-z]+)(\d+)", name):
            return f"t.{match[1]}[{match[2]}]"
        if any(name == register.prefix for register in self.kernel.registers):
            return f"t.{name[1:]}_"
        return f"{name.removeprefix('%')}_"

    def value(self, operand, kind):
        """What an operand means to an instruction that takes `kind`."""
        ctype = CTYPES[kind]
        if re.fullmatch(r"%(tid|ntid|ctaid|nctaid)\.[xyz]", operand):
            return f"static_cast<{ctype}>({operand[1:].replace('.', '_')}(block, t))"
        if match := re.fullmatch(r"0[fd]([0-9A-F]+)", operand):
            bits = "uint32_t" if len(match[1]) == 8 else "uint64_t"
            return f"as<{ctype}>({bits}{{0x{match[1]}u}})"
        if re.fullmatch(r"-?\d+|0x[0-9A-Fa-f]+", operand):
            return f"static_cast<{ctype}>({int(operand, 0)}{'u' if int(operand, 0) >= 2**63 else ''}ll)"
        if operand in self.params:
            return f"param_address(block, {self.params[operand]})"
        if operand in self.local:
            return f"reinterpret_cast<uint64_t>(t.local + {self.local[operand]})"
        if operand in self.shared:
            return f"static_cast<{ctype}>(kSharedBase + {self.shared[operand]})"
        return f"as<{ctype}>({self.place(operand)})"

    def address(self, operand):
        base, sign, offset = re.fullmatch(r"\[([%$\w.]+?)(?:(\+)(-?\w+))?\]", operand).groups()
        # Addresses of shared memory have 32 bits.
        at = f"uint64_t{{{self.place(base)}}}" if base.startswith("%") else self.value(base, "u64")
        return f"{at} + static_cast<uint64_t>({int(offset, 0)}ll)" if sign else at

    def put(self, operand, value):
        return f"put({self.place(operand)}, {value});"

    def instruction(self, it):
        name, mods, args = it.opcode[0], it.opcode[1:], it.operands
        kind = mods[-1] if mods else ""
        if hasattr(self, f"do_{name}"):
            return getattr(self, f"do_{name}")(it, mods, args)
        mods = [m for m in mods if m not in ROUNDED]
        if name in PLAIN and len(mods) == 1:
            takes = [kind] * (len(args) - 1)
            if name == "shr":
                takes[1] = "u32"
            if name == "selp":
                takes[2] = "pred"
            values = ", ".join(self.value(arg, take) for arg, take in zip(args[1:], takes, strict=True))
            return self.put(args[0], f"{name}_<{CTYPES[kind]}>({values})")
        raise UnknownPtx(f"line {it.line}: {'.'.join(it.opcode)}")

    def do_shl(self, it, mods, args):
        return self.put(
            args[0], f"shl_<{CTYPES[mods[0]]}>({self.value(args[1], mods[0])}, {self.value(args[2], 'u32')})"
        )

    def do_mul(self, it, mods, args):
        how = "mul" if mods[0] in ("rn", "f32", "f64") else f"mul_{mods[0]}"
        a, b = (self.value(arg, mods[-1]) for arg in args[1:])
        return self.put(args[0], f"{how}_<{CTYPES[mods[-1]]}>({a}, {b})")

    def do_mad(self, it, mods, args):
        if mods[0] != "lo":
            raise ValueError(mods)
        values = ", ".join(self.value(arg, mods[1]) for arg in args[1:])
        return self.put(args[0], f"mad_lo_<{CTYPES[mods[1]]}>({values})")

    def do_rcp(self, it, mods, args):
        how = "rcp_approx_" if mods[0] == "approx" else "rcp_"
        return self.put(args[0], f"{how}<{CTYPES[mods[-1]]}>({self.value(args[1], mods[-1])})")

    def do_bfi(self, it, mods, args):
        a, b = (self.value(arg, mods[0]) for arg in args[1:3])
        at, length = (self.value(arg, "u32") for arg in args[3:])
        return self.put(args[0], f"bfi_<{CTYPES[mods[0]]}>({a}, {b}, {at}, {length})")

    def do_bfind(self, it, mods, args):
        if mods != ["shiftamt", "u32"]:
            raise ValueError(mods)
        return self.put(args[0], f"bfind_shiftamt_({self.value(args[1], 'u32')})")

    def do_brev(self, it, mods, args):
        if mods != ["b32"]:
            raise ValueError(mods)
        return self.put(args[0], f"brev_({self.value(args[1], 'b32')})")

    def do_clz(self, it, mods, args):
        return self.put(args[0], f"clz_<{CTYPES[mods[0]]}>({self.value(args[1], mods[0])})")

    def do_cvt(self, it, mods, args):
        to, source = mods[-2:]
        how = {(): "cvt", ("rn",): "cvt", ("rzi",): "cvt_rzi"}[tuple(mods[:-2])]
        return self.put(args[0], f"{how}_<{CTYPES[to]}>({self.value(args[1], source)})")

    def do_cvta(self, it, mods, args):
        return self.put(args[0], self.value(args[1], mods[-1]))  # all spaces but shared are one here

    def do_mov(self, it, mods, args):
        if args[0].startswith("{"):
            low, high = parts_of(args[0])
            whole = self.value(args[1], mods[0])
            return self.put(low, f"low_half({whole})") + self.put(high, f"high_half({whole})")
        if args[1].startswith("{"):
            low, high = (self.value(part, f"b{int(mods[0][1:]) // 2}") for part in parts_of(args[1]))
            return self.put(args[0], f"of_halves({low}, {high})")
        return self.put(args[0], self.value(args[1], mods[0]))

    def do_setp(self, it, mods, args):
        compared = f"set_{mods[0]}({self.value(args[1], mods[-1])}, {self.value(args[2], mods[-1])})"
        if len(mods) == 3:
            compared = f"{mods[1]}_<bool>({compared}, {self.value(args[3], 'pred')})"
        return self.put(args[0], compared)

    def do_ld(self, it, mods, args):
        kind, space, cache, width = self.access(mods)
        to = parts_of(args[0])
        where = f"Space::{space}, Cache::{cache}, {self.address(args[1])}"
        load = f"load<{CTYPES[kind]}, {width}>(block, t, {where}, {it.line})"
        puts = "".join(self.put(name, f"got[{i}]") for i, name in enumerate(to))
        return (self.others_first() if cache == "kCg" else "") + f"{{ const auto got = {load}; {puts} }}"

    def do_st(self, it, mods, args):
        kind, space, _, width = self.access(mods)
        values = ", ".join(self.value(part, kind) for part in parts_of(args[1]))
        ctype = CTYPES[kind]
        return (
            f"store<{ctype}, {width}>(block, t, Space::{space}, {self.address(args[0])}, "
            f"std::array<{ctype}, {width}>{{{values}}}, {it.line});"
        )

    def do_atom(self, it, mods, args):
        space, how, kind = mods
        values = ", ".join(self.value(arg, kind) for arg in args[2:])
        where = f"Space::k{space.title()}, {self.address(args[1])}"
        call = f"atom_{how}<{CTYPES[kind]}>(block, t, {where}, {values}, {it.line})"
        return self.others_first() + (f"{call};" if args[0] == "_" else self.put(args[0], call))

    def access(self, mods):
        kind = mods[-1]
        width = next((int(m[1]) for m in mods if m in ("v2", "v4")), 1)
        space = next((m for m in mods if m in ("global", "shared", "param", "local")), "generic")
        cache = next((m for m in mods if m in ("nc", "cg")), "plain")
        rest = set(mods[:-1]) - {"v2", "v4", space, "nc", "cg", "cs", "L1::no_allocate"}
        if rest:
            raise ValueError(rest)
        return kind, f"k{space.title()}", f"k{cache.title()}", width

    def do_bra(self, it, mods, args):
        return f"goto {args[0].lstrip('$')};"

    def others_first(self):
        self.num_stops += 1
        return f"t.stop = {self.num_stops}; t.waits = false; return;\ncase {self.num_stops}:;"

    def do_bar(self, it, mods, args):
        if mods != ["sync"] or args != ["0"] or it.guard:
            raise ValueError("expected bar.sync 0 of all threads")
        self.num_stops += 1
        return f"t.stop = {self.num_stops}; t.waits = true; return;\ncase {self.num_stops}:;"

    def do_ret(self, it, mods, args):
        return "t.stop = kEnded; t.waits = true; return;"

    def do_trap(self, it, mods, args):
        return f'fault(block, t, {it.line}, "trap");'


def cpp_of(kernels):
    """Returns C++ in which all these kernels register themselves by name."""
    return '#include "machine.h"\n\nusing namespace ptx;\n\n' + "\n".join(Translation(k).text() for k in kernels)

"""Reads what nvcc writes for a GPU: the kernels of a PTX file, instruction by instruction (PTX ISA 9.0, NVIDIA)."""

import re
from dataclasses import dataclass, field


class UnknownPtx(Exception):
    """A line of PTX that this reader or the translator does not know; it names the line."""


@dataclass(frozen=True)
class Instruction:
    line: int  # of the PTX file, from 1
    guard: str | None  # a predicate register, with "!" before it where it is negated
    opcode: list[str]  # "ld.global.u64" in parts
    operands: list[str]  # "{a, b}" and "[a+8]" are one each


@dataclass(frozen=True)
class Register:
    """Registers that a scope declares: `count` called prefix0, prefix1, ..., or one called `prefix`."""

    type: str
    prefix: str
    count: int | None


@dataclass
class Kernel:
    name: str
    params: list[tuple[str, int]] = field(default_factory=list)  # name, bytes
    shared: list[tuple[str, int]] = field(default_factory=list)  # name, bytes
    local: list[tuple[str, int]] = field(default_factory=list)  # name, bytes
    registers: list[Register] = field(default_factory=list)  # of the kernel's own scope
    body: list[Instruction | Register | str] = field(default_factory=list)  # a text is a label ("L:"), "{" or "}"


def statements(text):
    """Yields (line, statement): what a semicolon ends, the head of a kernel, a label, or a brace that opens or closes a
    scope."""
    kept, begin = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"//.*", "", line).strip()
        if not kept and re.match(
            r"\.(version|target|address_size|file|loc|section|pragma|maxntid|minnctapersm)\b", line
        ):
            continue
        while line:
            begin = begin if kept else number
            whole = re.match(r"[$\w]+:|[{}]", line) if not kept else None
            if whole:
                yield number, whole[0]
                line = line[whole.end() :].lstrip()
                continue
            head, end, line = line.partition(";")
            kept, line = f"{kept} {head.strip()}".strip(), line.lstrip()
            if end or (".entry" in kept and kept.endswith(")")):
                yield begin, kept
                kept = ""


def instruction_of(line, text):
    match = re.fullmatch(r"(?:@(!?[%\w]+)\s+)?([a-z][\w.:]*)\s*(.*)", text)
    if not match:
        raise UnknownPtx(f"line {line}: {text}")
    guard, opcode, rest = match.groups()
    operands = [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", rest)] if rest else []
    return Instruction(line, guard, opcode.split("."), operands)


def kernels_of(text):
    """Returns the kernels of a PTX file. Functions that are called, and memory outside of kernels, are not known."""
    kernels = []
    depth = 0
    for line, statement in statements(text):
        if ".entry" in statement:
            name = re.search(r"\.entry\s+([\w$]+)", statement)[1]
            found = re.findall(r"\.param (?:\.align \d+ )?\.[bsuf](\d+) ([\w$]+)(?:\[(\d+)\])?", statement)
            kernels.append(Kernel(name, [(param, int(size) // 8 * int(count or 1)) for size, param, count in found]))
            continue
        if depth == 0 and statement != "{":
            raise UnknownPtx(f"line {line}: outside of a kernel: {statement}")
        depth += {"{": 1, "}": -1}.get(statement, 0)
        kernel = kernels[-1]
        if match := re.fullmatch(r"\.reg \.(\w+)\s+(%?\w+)(?:<(\d+)>)?", statement):
            register = Register(match[1], match[2], int(match[3]) if match[3] else None)
            (kernel.registers if depth == 1 else kernel.body).append(register)
        elif match := re.fullmatch(r"\.(shared|local) \.align \d+ \.b8\s+([\w$]+)\[(\d+)\]", statement):
            getattr(kernel, match[1]).append((match[2], int(match[3])))
        elif statement in ("{", "}") or statement.endswith(":"):
            if (statement, depth) not in (("{", 1), ("}", 0)):
                kernel.body.append(statement)
        else:
            kernel.body.append(instruction_of(line, statement))
    return kernels

"""Turn ``forward(whole sequence)`` into ``forward(new tokens, past, caches)``.

The claim: run on tokens ``past[b] .. past[b] + S - 1`` of each row b, with the caches that the earlier tokens left, the
incremental program gives what the whole-sequence program gives at those positions. It holds when every operation
treats tokens one by one, except causal attention, which then reads earlier keys and values from the cache; and when
positions count on from ``past``. Each operation is checked by a rule; one without a rule, or that breaks its rule's
condition, is refused by name and Python line.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.fx import Node
from torch.fx._lazy_graph_module import _LazyGraphModule

from anvil.errors import InputError
from anvil.frontend.incremental.rebuild import Rebuild
from anvil.frontend.incremental.roles import Axis, Role, plain
from anvil.frontend.incremental.rules import rule_for
from anvil.frontend.normalise.sharing import SHARE
from anvil.graph.program import CacheSpec, GraphProgram
from anvil.graph.rewrite import finish, shape_of
from anvil.graph.symbolic import fake_tensor, symbol_name, symbolic_size

_CAPACITY_HINT = 32
PAST, CAPACITY = "past", "C"


def incrementalise(program: GraphProgram, kv: torch.dtype | None = None) -> GraphProgram:
    """The incremental form of a program whose first input is [batch, tokens, ...].

    It gets an input ``past: i64[B]`` (tokens already in the caches, per row), and for each attention a key and a
    value cache of ``C`` slots. The result runs in PyTorch; it writes to the caches it is given. ``kv`` is the element
    type of the caches, by default that of keys and values; int8 adds a cache of scales to each.

    Raises:
        InputError: the first input has no dynamic batch and token dimensions, or a name is taken.
        UnsupportedError: the program does not treat its tokens one by one.
    """
    batch, tokens = _sequence_sizes(program)
    build = Rebuild(program, batch, tokens)
    specs = _placeholders(build, kv)
    for node in program.module.graph.nodes:
        if node.op != "call_function":
            continue
        build.at(node)
        if isinstance(node.meta.get("val"), (int, torch.SymInt)):
            build.declare(node, build.copy(node), plain(0))
            continue
        rule = rule_for(node.target)
        if rule is None:
            build.refuse(node, "it is not known to treat each token by itself")
        build.declare(node, *rule(build, node))
    _output(build)

    result = replace(
        program,
        module=_LazyGraphModule({}, build.graph),
        inputs=(*program.inputs, PAST),
        params=dict(program.params),
        symbols=program.symbols | {CAPACITY: (1, None)},
        caches=tuple(specs),
        stage="incrementalise",
        notes=[*program.notes, f"incrementalise: {len(build.caches)} attentions read a cache"],
    )
    SHARE.edit(result)
    finish(result)
    return result


def _sequence_sizes(program: GraphProgram) -> tuple[str, str]:
    first = next(iter(program.module.graph.nodes))
    names = [symbol_name(size) for size in shape_of(first)[:2]] if program.inputs else []
    if len(names) != 2 or None in names or names[0] == names[1]:
        raise InputError(
            f"making {program.name!r} incremental: its first input {first.name} has shape {tuple(shape_of(first))},"
            " expected dynamic sizes for batch and tokens first, as in [B, S]"
        )
    taken = {PAST} & {*program.inputs} | {CAPACITY} & {*program.symbols}
    if taken:
        raise InputError(
            f"making {program.name!r} incremental: {taken.pop()!r} is taken, expected it free for the cache"
        )
    return names[0], names[1]


def _placeholders(build: Rebuild, kv: torch.dtype | None) -> list[CacheSpec]:
    """Inputs, ``past``, caches, parameters; returns what the caches are."""
    old = {node.target: node for node in build.program.module.graph.find_nodes(op="placeholder")}
    for name in build.program.inputs:
        value = old[name].meta["val"]
        axes = [build.axis_of_size(size) or Axis.PLAIN for size in value.shape]
        build.declare(old[name], build.placeholder(name, value), Role(tuple(axes)))
    rows = shape_of(old[build.program.inputs[0]])[0]
    build.past = build.placeholder(PAST, fake_tensor(build.mode, (rows,), torch.int64))
    capacity = symbolic_size(build.mode, CAPACITY, _CAPACITY_HINT)
    attentions = build.program.module.graph.find_nodes(op="call_function", target=torch.ops.anvil.attention.default)
    caches: list[CacheSpec] = []
    for layer, node in enumerate(attentions):
        specs = _specs(node, layer, kv)
        build.caches[node] = [
            build.placeholder(spec.placeholder, fake_tensor(build.mode, spec.shape(rows, capacity), spec.dtype))
            for spec in specs
        ]
        caches += specs
    for name in build.program.params:
        value = old[name].meta["val"]
        build.declare(old[name], build.placeholder(name, value), plain(value.ndim))
    return caches


def _specs(attention: Node, layer: int, kv: torch.dtype | None) -> list[CacheSpec]:
    """The key cache and the value cache of an attention call, and their scales."""
    caches = [
        CacheSpec(f"{kind}_cache_{layer}", shape_of(item)[1], shape_of(item)[3], kv or item.meta["val"].dtype)
        for kind, item in zip("kv", attention.args[1:3], strict=True)
    ]
    if kv != torch.int8:
        return caches
    return caches + [CacheSpec(f"{cache.placeholder}_scale", cache.heads, None, torch.float32) for cache in caches]


def _output(build: Rebuild) -> None:
    output = build.program.module.graph.output_node()
    for value in output.args[0]:
        role = build.role(value)
        if role.lifted or not {Axis.BATCH, Axis.TOKEN} <= set(role.axes):
            build.refuse(value, "an output has to have a value for every row and token")
    new = build.graph.output(build.new(output.args[0]))
    new.meta["val"] = tuple(value.meta["val"] for value in new.args[0])

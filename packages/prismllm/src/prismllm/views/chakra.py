"""The graph as Chakra execution traces of MLCommons, one `<name>.<rank>.et` for each rank, for other simulators.

Schema: mlcommons/chakra, schema/protobuf/et_def.proto; the fields used here are declared below with its numbers. Files
are rows of messages, each behind its length as a varint: one GlobalMetadata, then Nodes. Attributes are those that
ASTRA-sim's feeder reads (`comm_type`, `comm_size`, `comm_src`, `comm_dst`, `comm_tag`, `pg_name`, `is_cpu_op`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto  # type: ignore[import-untyped]

from prismllm.graph import Block, Graph, rows_of

COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE = 4, 5, 6, 7
COLLECTIVES = {"all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5,
               "all_to_all": 6, "reduce_scatter": 7, "barrier": 9}  # fmt: skip
_STRING, _UINT64, _INT32, _INT64, _BOOL, _MESSAGE, _ENUM = 9, 4, 5, 3, 8, 11, 14
_VERSION = "0.0.4"


@lru_cache(maxsize=1)
def messages() -> dict[str, Any]:
    """Classes of the schema's messages, as far as they are used."""
    file = descriptor_pb2.FileDescriptorProto(name="et_def_used.proto", package="ChakraProtoMsg", syntax="proto3")
    kinds = file.enum_type.add(name="NodeType")
    for number, name in enumerate(("INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE",
                                   "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE")):  # fmt: skip
        kinds.value.add(name=name, number=number)
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    attribute.field.add(name="name", number=1, type=_STRING, label=1)
    for name, number, kind in (("int32_val", 7, _INT32), ("int64_val", 9, _INT64), ("uint64_val", 13, _UINT64),
                               ("bool_val", 27, _BOOL), ("string_val", 29, _STRING)):  # fmt: skip
        attribute.field.add(name=name, number=number, type=kind, label=1, oneof_index=0)
    node = file.message_type.add(name="Node")
    for name, number, kind, label in (
        ("id", 1, _UINT64, 1), ("name", 2, _STRING, 1), ("type", 3, _ENUM, 1), ("ctrl_deps", 4, _UINT64, 3),
        ("data_deps", 5, _UINT64, 3), ("start_time_micros", 6, _UINT64, 1), ("duration_micros", 7, _UINT64, 1),
        ("attr", 10, _MESSAGE, 3),
    ):  # fmt: skip
        field = node.field.add(name=name, number=number, type=kind, label=label)
        if kind == _ENUM:
            field.type_name = ".ChakraProtoMsg.NodeType"
        if kind == _MESSAGE:
            field.type_name = ".ChakraProtoMsg.AttributeProto"
    metadata = file.message_type.add(name="GlobalMetadata")
    metadata.field.add(name="version", number=1, type=_STRING, label=1)
    metadata.field.add(name="attr", number=2, type=_MESSAGE, label=3, type_name=".ChakraProtoMsg.AttributeProto")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
            for name in ("Node", "GlobalMetadata", "AttributeProto")}  # fmt: skip


def write_chakra(graph: Graph, folder: Path, name: str = "job", ranks: Iterable[int] | None = None) -> int:
    """Write a trace for each rank, all by default; return how many files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = rows_of(graph.blocks, ranks)
    for at, row, rank in rows:
        metadata = messages()["GlobalMetadata"](version=_VERSION)
        _attribute(metadata, "world_size", uint64_val=graph.job.world)
        with (folder / f"{name}.{rank}.et").open("wb") as file:
            for message in (metadata, *_nodes(graph, graph.blocks[at], row)):
                proto.serialize_length_prefixed(message, file)
    return len(rows)


def _nodes(graph: Graph, block: Block, row: int) -> Iterator[Any]:
    """Own work and calls of one rank: a call depends on the work before it, work on the calls that were waited for."""
    rank_class = graph.job.classes[block.rank_class]
    node_of_call: dict[int, int] = {}
    number, work = 0, -1
    waited: list[int] = []
    for at, own_ns in enumerate(rank_class.step.segments_ns):
        number += 1
        node = messages()["Node"](id=number, name=f"own work {at}", type=COMP_NODE,
                                   duration_micros=max(0, round(own_ns / 1000)))  # fmt: skip
        node.data_deps.extend(([work] if work >= 0 else []) + waited)
        _attribute(node, "is_cpu_op", bool_val=False)
        yield node
        work, waited = number, []
        if at == len(rank_class.step.events):
            return
        event = rank_class.step.events[at]
        if event < 0:
            waited = [node_of_call[-1 - event]]
            continue
        number += 1
        node_of_call[event] = number
        yield _call_node(graph, block, row, event, number, work)


def _call_node(graph: Graph, block: Block, row: int, place: int, number: int, work: int) -> Any:
    call = graph.job.classes[block.rank_class].step.calls[place]
    operation = int(block.operations[place][row])
    rank = int(block.ranks[row])
    kinds = {"send": COMM_SEND_NODE, "recv": COMM_RECV_NODE}
    node = messages()["Node"](id=number, name=f"{call.op} at {call.site}", type=kinds.get(call.op, COMM_COLL_NODE))
    node.data_deps.append(work)
    _attribute(node, "is_cpu_op", bool_val=False)
    _attribute(node, "comm_size", int64_val=call.nbytes)
    if call.is_pairwise:
        source, target = (int(one) for one in graph.pair[operation])
        _attribute(node, "comm_src", int32_val=source)
        _attribute(node, "comm_dst", int32_val=target)
        _attribute(node, "comm_tag", int32_val=call.tag * 4096 + call.number)
        return node
    family = graph.layout.family_of(call.group)
    _attribute(node, "comm_type", int64_val=COLLECTIVES.get(call.op, COLLECTIVES["all_to_all"]))
    _attribute(node, "pg_name", string_val=str(graph.layout.group_of(family, rank)))
    return node


def _attribute(message: Any, name: str, **value: Any) -> None:
    message.attr.append(messages()["AttributeProto"](name=name, **value))

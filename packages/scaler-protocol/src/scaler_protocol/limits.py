"""Limits of message fields; the codec checks them when it writes and when it reads a message.

`FIELDS` is the table. The limit of a field that is not in it follows from its type in the schema (`DEFAULTS`).
`RELATIONS` are conditions between the columns of a message, in addition to `COLUMNS` of its class. Code that takes
values from users checks them with the same limits: `limits.PRIORITY.fault(priority)` returns the error text, or "".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from scaler_protocol.handshake import Role, ServiceKind
from scaler_protocol.ids import WORKER_ID_BYTES
from scaler_protocol.messages import MESSAGE_GROUPS, MESSAGE_IDS, MESSAGE_NEEDS
from scaler_protocol.monitoring import PACKED_BATCH, PACKED_EDGE, PACKED_ID, EventKind
from scaler_protocol.outputs import TRACEBACK
from scaler_protocol.profiles import PROFILE
from scaler_protocol.ranges import (
    Acyclic,
    AnyOf,
    Anything,
    Bytes,
    Column,
    Distinct,
    Ends,
    Flag,
    Grouped,
    Limit,
    Planes,
    Positions,
    Profiles,
    Real,
    Relation,
    Text,
    Whole,
)

# --- limits of several fields ---------------------------------------------------------------------------------------

ENTRIES: Final = 2**24
"""Entries of a column, unless its table entry says otherwise."""
ID: Final = Bytes(16, 16)
"""Of a function, an object or a process."""
NAME: Final = Text(4096)
"""Of a function, a client, an agent or a host."""
WORKER_NAME: Final = Text(256)
"""Name of a worker; shorter than NAME because an agent reports many."""
UNIT: Final = Text(256)
"""Name of a worker manager, or of a unit that it started."""
SESSION_NAME: Final = Text(256)
"""Name of a session that outlives its client."""
SESSION_KEY: Final = Bytes(0, 64)
STACK: Final = Text(8192)
"""Frames of a stack, with semicolons between them."""
STACKS: Final = 8192
"""Different stacks of a part of a profile."""
LABEL: Final = Text(256)
"""Name of a future in its session."""
WORDS: Final = Text(65_536)
"""Text for people; see `shortened`."""
KEYWORD: Final = Text(4096)
"""Name of a keyword argument, in calls of custom serializers."""
PART: Final = Bytes(0, 2**32 - 1)
"""Bytes of an argument in such a call, or of an entry of a payload column."""
DATA: Final = Bytes(0, 2**28)
"""Bytes of a field, unless its table entry says otherwise."""
PRIORITY: Final = Whole(-(2**31), 2**31 - 1)
RETRIES: Final = Whole(0, 2**16 - 1)
SECONDS: Final = Real(0.0, 1e9)
"""A timeout or an interval in seconds; 1e9 is about 31 years."""
MOMENT: Final = Real(-1e9, 1e11)
"""A time in seconds since 1970, of the years 1938 to 5138: calendars of all languages have it."""
COUNT: Final = Whole(0, 2**40)
"""Of tasks that a scheduler knows now; sums of such numbers have at most 64 bits."""
CAPABILITY_NAME: Final = Text(256, least=1, without="=,")
"""Monitors and command lines write capabilities as `gpu=1,linux`."""
CAPABILITY_VALUE: Final = Whole(-1, 2**63 - 1)
QUANTITY: Final = Whole(1, 2**63 - 1)
"""How much of a consumable an agent has."""
CAPABILITIES: Final = 256
"""Capabilities of a task or an agent."""
FUNCTIONS: Final = 2**16
"""Groups, or functions, in one message; positions of groups have 16 bits."""
DEFINED: Final = 4096
"""Functions that one message defines in the scheduler, or asks it for."""
KEPT_FUNCTIONS: Final = 4096
"""The scheduler assumes that an agent has the last 4,096 functions that it was sent; the agent requests others."""
OUTPUT_BYTES: Final = 64 * 1024
"""Bytes of what a task prints that are kept for monitors, at most."""
WORKER_BYTES: Final = 32 * 1024 * 1024
"""The least memory limit of a worker: it uses about 20 MiB before it has a task."""
CORES: Final = Real(0.0, 1e9)
"""How many are used, or wanted."""
WORKERS: Final = Whole(0, 2**16 - 1)
"""Workers of one agent."""
DEATHS: Final = 256
"""Deaths of workers that one report of an agent describes."""
DEATH: Final = Text(4096)
"""The description of one."""
MANAGED: Final = Whole(-1, 2**31 - 1)
"""The most workers of one manager; -1: no limit."""
OFFERS: Final = 256
"""Worker classes that one manager can start."""
UNITS: Final = 2**16
"""Units of one manager."""
DELETED_TOGETHER: Final = 4096
"""Objects that one message deletes."""
QUEUE_SIZE: Final = Whole(0, 1_000_000)
"""Runs that an agent takes in advance for each worker."""
SIZE: Final = Whole(0, 2**63 - 1)
"""Bytes of an object, or an offset in it; the maximum is that of a file."""

_FIGURES: Final = Text(2**17)
"""All capabilities of a task or an agent in one text, as monitors receive them."""
_IDS: Final = Column(ID, ENTRIES)
_FUNCTION_IDS: Final = Column(ID, FUNCTIONS)
_FUNCTION_NAMES: Final = Column(NAME, FUNCTIONS)
_NAMES: Final = Column(NAME, ENTRIES)
_STATUSES: Final = Column(Whole(0, 4), ENTRIES)
_STATES: Final = Column(Whole(0, 5), ENTRIES)
_MOMENTS: Final = Column(MOMENT, ENTRIES)
_COUNTS: Final = Column(COUNT, ENTRIES)
_RESULT_SIZES: Final = Column(Whole(0, 4), ENTRIES)
_GROUPS: Final = Column(Anything(), FUNCTIONS, each_fits=True)
_SIZES: Final = Column(SIZE, ENTRIES)
_LEVELS: Final = Column(AnyOf(frozenset({10, 20, 30, 40, 50})), ENTRIES)
_KINDS: Final = Column(Whole(0, EventKind.SCHEDULER), ENTRIES)
_CAPABILITIES: Final = {
    "capability_names": Column(CAPABILITY_NAME, CAPABILITIES),
    "capability_values": Column(CAPABILITY_VALUE, CAPABILITIES),
}
_CODE: Final = {"functions": _FUNCTION_IDS, "names": _FUNCTION_NAMES}
_DEFINITIONS: Final = {"functions": Column(ID, DEFINED), "names": Column(NAME, DEFINED)}

DEFAULTS: Final[Mapping[str, Limit]] = {
    **{f"uint{bits}": Whole(0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"int{bits}": Whole(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (32, 64)},
    "float64": Real(),
    "bool": Flag(),
    "text": WORDS,
    "data": DATA,
    "payloads": PART,
}
"""The limit by type in the schema; a column has at most ENTRIES entries."""

_MESSAGE_IDS: Final = Column(DEFAULTS["uint64"], MESSAGE_IDS, each_fits=True)

KEPT_BY_TYPE: Final = frozenset({"uint8", "uint16", "uint32", "uint64", "int32", "int64", "bool", "payloads"})
"""Types that cannot hold a value outside of their default limit."""

FIELDS: Final[Mapping[str, Mapping[str, Limit]]] = {
    "Group": {
        "function": ID,
        **_CAPABILITIES,
        "retries": RETRIES,
        "timeout_seconds": SECONDS,
        "encoding": Whole(0, 2),
        "serializer": Bytes(16, 16, optional=True),
        "stream_output": Whole(0, 2),
        "worker": Bytes(WORKER_ID_BYTES, WORKER_ID_BYTES, optional=True),
    },
    "Hello": {
        "role": AnyOf(frozenset({Role.CLIENT, Role.AGENT, Role.OPERATOR, Role.MANAGER})),
        "identity": ID,
        "name": NAME,
        "host": NAME,
        "python": Text(64),
        "cloudpickle": Text(64),
        "workers": WORKERS,
        "queue_size": QUEUE_SIZE,
        **_CAPABILITIES,
        "consumable_names": Column(CAPABILITY_NAME, CAPABILITIES),
        "consumable_totals": Column(QUANTITY, CAPABILITIES),
        "session_token": Bytes(0, 64),
        "session_key": SESSION_KEY,
        "manager": UNIT,
        "unit": UNIT,
        "service": AnyOf(frozenset({ServiceKind.SCHEDULER, ServiceKind.STORAGE})),
        "session_name": SESSION_NAME,
        "lives_on_seconds": SECONDS,
    },
    "Welcome": {
        "heartbeat_seconds": SECONDS,
        "storage_address": NAME,
        "fallback_address": NAME,
        "segment_directory": NAME,
        "challenge": Bytes(0, 64),
        "session_token": Bytes(0, 64),
    },
    "Refused": {"reasons": Column(WORDS, 64)},
    "Heartbeat": {"seconds": SECONDS, "busy": Real(0.0, 1.0)},
    "Submit": {
        "groups": Column(Anything(), MESSAGE_GROUPS, each_fits=True),
        "tasks": _MESSAGE_IDS,
        "dependents": Column(DEFAULTS["uint32"], MESSAGE_NEEDS, each_fits=True),
        "needs": Column(DEFAULTS["uint64"], MESSAGE_NEEDS, each_fits=True),
        **_DEFINITIONS,
    },
    "Run": {"groups": _GROUPS, "result_sizes": _RESULT_SIZES, **_CODE},
    "Done": {"tasks": _MESSAGE_IDS, "statuses": _STATUSES, "agents": Column(NAME, MESSAGE_IDS)},
    "NeedFunctions": {"functions": Column(ID, DEFINED)},
    "Functions": _DEFINITIONS,
    "Cancel": {"tasks": _MESSAGE_IDS},
    "Release": {"tasks": _MESSAGE_IDS},
    "Returned": {"runs": _MESSAGE_IDS},
    "Blocked": {"runs": _MESSAGE_IDS},
    "Reconcile": {
        "running": _MESSAGE_IDS,
        "wanted": _MESSAGE_IDS,
        "finished": _MESSAGE_IDS,
        "takers": _MESSAGE_IDS,
        "taken_names": Column(CAPABILITY_NAME, MESSAGE_IDS),
        "taken_values": Column(QUANTITY, MESSAGE_IDS),
    },
    "Inputs": {"tasks": _MESSAGE_IDS, "statuses": _STATUSES},
    "Output": {"tasks": _MESSAGE_IDS, "streams": Column(Whole(1, TRACEBACK), ENTRIES)},
    "AgentStatus": {
        "cpu": CORES,
        "load": CORES,
        "names": Column(WORKER_NAME, WORKERS.most),
        "states": _STATES,
        "cpus": Column(CORES, ENTRIES),
        "deaths": Column(DEATH, DEATHS),
        "death_hosts": Column(NAME, DEATHS),
    },
    "Resized": {"workers": WORKERS},
    "DumpPart": {"data": Bytes(0, 2**20)},
    "TakeProfile": {"function": NAME, "seconds": Real(0.0, 600.0)},
    "ProfilePart": {"stacks": Column(STACK, STACKS)},
    "ManagerStatus": {
        "kind": UNIT,
        "maximum": MANAGED,
        "offer_capabilities": Column(_FIGURES, OFFERS),
        "offer_pythons": Column(Text(64), OFFERS),
        "offer_cloudpickles": Column(Text(64), OFFERS),
        "unit_sizes": Column(Whole(1, WORKERS.most), OFFERS),
        "offer_quantities": Column(_FIGURES, OFFERS),
        "pending_units": Column(UNIT, UNITS),
        "pending_offers": Column(DEFAULTS["uint32"], UNITS, each_fits=True),
        "paused_seconds": SECONDS,
        "startup_seconds": SECONDS,
    },
    "DesiredWorkers": {
        "workers": Column(DEFAULTS["uint32"], OFFERS, each_fits=True),
        "units": Column(UNIT, UNITS),
        "unit_states": Column(Whole(0, 2), UNITS),
    },
    "WorkerList": {
        "hosts": _NAMES,
        "capabilities": Column(_FIGURES, ENTRIES),
        "managers": Column(UNIT, ENTRIES),
    },
    "ListProcesses": {"gone": Column(Bytes(WORKER_ID_BYTES, WORKER_ID_BYTES), MESSAGE_IDS)},
    "ProcessList": {"names": Column(WORKER_NAME, MESSAGE_IDS), "agents": _IDS, "hosts": _NAMES},
    "ListTasks": {"session": SESSION_NAME, "key": SESSION_KEY},
    "TaskList": {
        "labels": Column(LABEL, ENTRIES),
        "functions": _NAMES,
        "states": Column(Whole(0, 4), ENTRIES),
        "statuses": _STATUSES,
        "encodings": Column(Whole(0, 2), ENTRIES),
    },
    "LabelTask": {"label": LABEL},
    "EndSession": {"session": SESSION_NAME, "key": SESSION_KEY},
    "KeepSession": {"key": SESSION_KEY},
    "PutObject": {"object": ID, "size": SIZE, "offset": SIZE, "parts": Column(Bytes(0, 2**20), 1)},
    "GetObject": {"object": ID, "offset": SIZE},
    "DeleteObjects": {"objects": Column(ID, DELETED_TOGETHER)},
    "ObjectStored": {"object": ID},
    "ObjectList": {"objects": Column(ID, MESSAGE_IDS)},
    "ObjectPart": {"object": ID, "size": SIZE, "parts": Column(Bytes(0, 2**20), 1)},
    "HostProof": {"proof": Bytes(32, 32), "lock_file": Text(64)},
    "AllocateObject": {"object": ID, "size": SIZE},
    "ObjectAllocated": {"object": ID, "segment": NAME},
    "SealObject": {"object": ID, "segment": NAME},
    "MapObject": {"object": ID, "size": SIZE},
    "ObjectMapped": {"object": ID, "segment": NAME},
    "UnpinObjects": {"pins": _MESSAGE_IDS, "inherited": _MESSAGE_IDS},
    "RegisterReplicaServer": {"host": Bytes(16, 64)},
    "RegisterReplica": {"object": ID, "size": SIZE, "host": Bytes(16, 64)},
    "CopyReplicas": {"objects": Column(ID, MESSAGE_IDS)},
    "FetchReplica": {"object": ID, "size": SIZE},
    "DropReplicas": {"objects": Column(ID, MESSAGE_IDS), "sizes": _SIZES},
    "MonitorStatus": {
        **dict.fromkeys(("waiting", "held", "assigned", "exclusive"), COUNT),
        **dict.fromkeys(("client_tasks", "agent_assigned", "waiting_tasks"), _COUNTS),
        **dict.fromkeys(("unlisted_running", "unlisted_busy", "unlisted_blocked"), _COUNTS),
        **dict.fromkeys(("graph_nodes", "graph_succeeded", "graph_failed", "graph_cancelled"), _COUNTS),
        **dict.fromkeys(("graph_assigned", "graph_running"), _COUNTS),
        **dict.fromkeys(("graph_start_times", "graph_end_times"), _MOMENTS),
        "at": MOMENT,
        "address": NAME,
        "client_names": _NAMES,
        "client_hosts": _NAMES,
        "agent_names": _NAMES,
        "agent_hosts": _NAMES,
        "agent_workers": Column(WORKERS, ENTRIES),
        "agent_queue_sizes": Column(QUEUE_SIZE, ENTRIES),
        "agent_capabilities": Column(_FIGURES, ENTRIES),
        "worker_cpus": Column(CORES, ENTRIES),
        "worker_seconds": Column(SECONDS, ENTRIES),
        "unlisted_cpus": Column(Real(0.0, 1e15), ENTRIES),
        "worker_names": Column(WORKER_NAME, ENTRIES),
        "worker_states": _STATES,
        "function_names": _NAMES,
        "agent_managers": Column(UNIT, ENTRIES),
        "agent_units": Column(UNIT, ENTRIES),
        "managers": Column(UNIT, ENTRIES),
        "manager_kinds": Column(UNIT, ENTRIES),
        "manager_hosts": _NAMES,
        "manager_maximums": Column(MANAGED, ENTRIES),
        "manager_pauses": Column(SECONDS, ENTRIES),
        "offer_managers": Column(UNIT, ENTRIES),
        "offer_capabilities": Column(_FIGURES, ENTRIES),
        "refusal": NAME,
        "heartbeat_seconds": SECONDS,
        "uptime": SECONDS,
        "waiting_capabilities": Column(_FIGURES, ENTRIES),
        "waiting_shortages": Column(_FIGURES, ENTRIES),
    },
    "TaskEvents": {
        "since": MOMENT,
        "text_times": _MOMENTS,
        "group_functions": _NAMES,
        "group_clients": _NAMES,
        "group_capabilities": Column(_FIGURES, ENTRIES),
        "text_levels": _LEVELS,
        "text_kinds": _KINDS,
        "text_subjects": _NAMES,
    },
    "MonitorHistory": {
        **dict.fromkeys(("failure_times", "event_times", "figure_times", "forgotten_times"), _MOMENTS),
        **dict.fromkeys(("figure_waiting", "figure_assigned", "figure_running"), _COUNTS),
        "run_counts": Column(Whole(1, 2**64 - 1), ENTRIES),
        "failure_functions": _NAMES,
        "failure_clients": _NAMES,
        "failure_agent_names": _NAMES,
        "failure_statuses": _STATUSES,
        "event_levels": _LEVELS,
        "event_kinds": _KINDS,
        "event_subjects": _NAMES,
        "run_functions": _NAMES,
        "run_hosts": _NAMES,
        "growth_functions": _NAMES,
        "forgotten_functions": _NAMES,
    },
}

_DEFINED: Final = Positions("bodies_stored", "bodies")

RELATIONS: Final[Mapping[str, Sequence[Relation]]] = {
    "Submit": (
        Distinct("tasks"),
        Grouped(),
        Positions("task_groups", "groups"),
        Positions("stored", "calls"),
        Positions("dependents", "tasks"),
        Acyclic(),
        Positions("intermediate", "tasks"),
        _DEFINED,
    ),
    "Run": (
        Grouped(),
        Positions("task_groups", "groups"),
        Positions("stored", "calls"),
        Positions("dependents", "tasks"),
        Positions("inputs_stored", "inputs"),
        Positions("inputs_awaited", "inputs"),
        _DEFINED,
    ),
    "Done": (
        Distinct("runs"),
        Positions("stored", "results"),
        Profiles("profiles", of="tasks"),
        Ends("agent_ends", of="tasks"),
    ),
    "Functions": (_DEFINED,),
    "Inputs": (Positions("stored", "results"),),
    "TaskList": (Positions("stored", "results"),),
    "TaskEvents": (
        Planes("batches", PACKED_BATCH.size),
        Planes("runs", PACKED_ID.size),
        Planes("tasks", PACKED_ID.size),
        Planes("statuses", 1),
        Planes("profiles", PROFILE.size),
        Planes("edges", PACKED_EDGE.size),
    ),
    "MonitorHistory": (Profiles("failure_profiles", of="failure_tasks"),),
}


def limit_of(message: str, field: str, element: str, *, is_column: bool) -> Limit:
    """The limit of a field; its type in the schema is `element`, or for a column a list of `element`."""
    if limit := FIELDS.get(message, {}).get(field):
        return limit
    return Column(DEFAULTS[element], ENTRIES, element in KEPT_BY_TYPE) if is_column else DEFAULTS[element]


def last_deaths(texts: Sequence[str]) -> list[str]:
    """As many of these deaths, the last ones, as a report of an agent may describe."""
    return [shortened(text, DEATH) for text in texts[-DEATHS:]]


def shortened(text: str, limit: Text = WORDS) -> str:
    """The text within `limit`: characters that UTF-8 cannot write are replaced, and a long text is cut off."""
    written = text.encode(errors="backslashreplace")
    if len(written) <= limit.most:
        return written.decode()
    end = "…".encode()
    return (written[: limit.most - len(end)] + end).decode(errors="ignore")

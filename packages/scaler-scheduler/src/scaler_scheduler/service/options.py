"""The command line of `scaler_scheduler`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from scaler_io.ports import free_port
from scaler_io.service.base import SERVER_OPTIONS, ServerOptions, refuse_exposed
from scaler_io.service.cli import Command
from scaler_io.service.options import (
    ALLOCATE_POLICY,
    JOURNAL_SYNC,
    REFUSED_BY_SCHEDULER,
    STORAGE_OPTIONS,
    Option,
    byte_count,
    http_address,
    one_of,
    path,
    positive_seconds,
    seconds,
    whole_number,
)
from scaler_io.transport.endpoint import ListenError
from scaler_protocol.addresses import Address
from scaler_protocol.capabilities import parse_quantities
from scaler_protocol.lazy_dataclass import dataclass
from scaler_scheduler.scaling.control_law import COOLDOWN_SECONDS
from scaler_scheduler.scaling.rules import FORM
from scaler_scheduler.service.policy_choice import (
    DEFAULT_CONTENT,
    SIMPLE,
    WATERFALL,
    PolicyChoice,
    PolicyOptions,
    strategy,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions(ServerOptions):
    """The scheduler's options, merged from command line, environment and TOML file."""

    object_storage_address: Address | None
    advertised_object_storage_address: Address | None
    monitor_address: Address | None
    metrics_address: Address | None
    protected: bool
    max_number_of_tasks_waiting: int
    max_session_bytes: int | None
    worker_timeout_seconds: float
    result_retention_seconds: float
    result_limit: int
    replicas: int
    cluster_capabilities: dict[str, int]
    allocate_policy: str | None
    policy_engine_type: str
    policy_content: str | None
    scaling_controller_strategy: str | None
    scale_down_cooldown_seconds: float
    journal: Path | None
    journal_sync: str
    journal_key_limit: int | None
    adapter_webhook_urls: tuple[str, ...]
    adapter_webhook_token: str | None

    def check(self) -> None:
        """Raises ValueError for options that contradict each other, AddressError for a bind beyond loopback."""
        if self.object_storage_address is not None:
            if _is_same_service(self.object_storage_address, self.address):
                raise ValueError(
                    f"--object-storage-address {self.object_storage_address} is this scheduler's own address: "
                    "name another server, or leave it out to have one started"
                )
            for option in STORAGE_OPTIONS:
                if getattr(self, option.destination) is not None:
                    raise ValueError(f"{option.names[0]} is for the server at --object-storage-address: give it there")
        if self.journal is None and (self.journal_key_limit is not None or self.journal_sync != "normal"):
            wanting = "--journal-sync full" if self.journal_key_limit is None else "--journal-key-limit"
            raise ValueError(f"{wanting} needs a --journal to record work in")
        self.policies()
        # Not super(): dataclass(slots=True) makes a new class, which super() in its methods does not refer to.
        ServerOptions.check(self)
        if self.metrics_address is not None:
            refuse_exposed(self.metrics_address, self.insecure or self.keys is not None)

    def policies(self) -> PolicyChoice:
        """The policies that balance and scale; raises ValueError naming option, value and remedy."""
        return PolicyOptions(
            engine_type=self.policy_engine_type,
            content=self.policy_content,
            allocate=self.allocate_policy,
            strategy=self.scaling_controller_strategy,
            cooldown_seconds=self.scale_down_cooldown_seconds,
        ).choose()

    def with_port(self) -> SchedulerOptions:
        """The options with port 0 replaced by a free port whose two successors are free, too. Raises ListenError."""
        if self.address.path or self.address.port:
            return self
        try:
            port = free_port(self.address.host)
        except OSError as error:
            raise ListenError(f"cannot listen to {self.address}: {error}") from None
        return replace(self, address=replace(self.address, port=port))


def _is_same_service(one: Address, other: Address) -> bool:
    return one == other or (one.is_local and other.is_local and one.port != 0 and one.port == other.port)


def webhook_url(text: str) -> str:
    """Check the URL of a worker adapter; raises ValueError."""
    try:
        parts = urlsplit(text)
        is_right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # its port or IPv6 address is wrong
        is_right = False
    if not is_right or not text.isprintable() or " " in text:
        raise ValueError(f"{text!r} is no URL of a worker adapter: write http://host:port")
    return text


def adapter_token(text: str) -> str:
    """Check a token, which is sent in a header of HTTP; raises ValueError, without the token."""
    if not text.isascii() or not text.isprintable():
        raise ValueError("the token has characters other than printable ASCII, which HTTP cannot carry")
    return text


POLICY_OPTIONS = (
    Option(
        ("--policy-engine-type", "-et"),
        "how --policy-content is read",
        one_of(SIMPLE, WATERFALL),
        default=SIMPLE,
    ),
    Option(
        ("--policy-content", "-pc"),
        f"how work is balanced and workers are scaled: {DEFAULT_CONTENT} if left out; scaling is no, static:N, vanilla,"
        f" capability or a plug-in; for {WATERFALL} lines of the form {FORM}",
        default=None,
        metavar="TEXT",
    ),
    Option(
        ("--allocate-policy", "-ap"),
        "balance by load alone, or keep workers with rare capabilities free: allocate of --policy-content",
        ALLOCATE_POLICY,
        default=None,
    ),
    Option(
        ("--scaling-controller-strategy",),
        "null, or a policy: scaling of --policy-content",
        strategy,
        default=None,
        metavar="POLICY",
    ),
    Option(
        ("--scale-down-cooldown-seconds", "-sdc"),
        "how long workers stay after they were last needed",
        seconds,
        default=COOLDOWN_SECONDS,
    ),
    Option(
        ("--adapter-webhook-urls", "--adapter-webhook-url", "-awu"),
        "worker adapters that start and stop workers when they are asked over HTTP, like http://127.0.0.1:8080",
        webhook_url,
        default=(),
        repeated=True,
        metavar="URL",
    ),
    Option(
        ("--adapter-webhook-token",),
        "what worker adapters are shown; better given in the environment",
        adapter_token,
        default=None,
        environment="SCALER_ADAPTER_TOKEN",
    ),
)

JOURNAL_OPTIONS = (
    Option(
        ("--journal",),
        "record accepted work in this file, and continue from it at the start: on a local disk, for one scheduler",
        path,
        default=None,
        metavar="FILE",
    ),
    Option(
        ("--journal-sync",),
        "normal survives the end of processes, full also a loss of power, at a flush of the disk for each turn",
        JOURNAL_SYNC,
        default="normal",
    ),
    Option(
        ("--journal-key-limit",),
        "bytes that the clients of one key may have in the journal, without keys each client; by default a quarter of "
        "its disk",
        byte_count(2**20),
        default=None,
        metavar="BYTES",
    ),
)

COMMAND = Command(
    program="scaler_scheduler",
    description="Route tasks from clients to workers.",
    section="scheduler",
    config=SchedulerOptions,
    options=(
        Option(("address", "bind_address"), "where to listen: tcp://host:port or ipc://path", Address.parse),
        Option(
            ("--object-storage-address", "-osa"),
            "the object storage server; without it the next port is used, and a server started there if none comes up",
            Address.parse_peer,
            default=None,
        ),
        Option(
            ("--advertised-object-storage-address", "-aosa"),
            "what to tell clients and workers instead of the former",
            Address.parse_peer,
            default=None,
        ),
        Option(
            ("--monitor-address", "-ma"),
            "where monitors subscribe; the port after the next if left out",
            Address.parse,
            default=None,
        ),
        Option(
            ("--metrics-address",),
            "where Prometheus reads /metrics; nowhere if left out",
            http_address,
            default=None,
            metavar="HOST:PORT",
        ),
        Option(("--protected", "-p"), "refuse to be shut down by clients", default=True, flag=True),
        Option(
            ("--max-number-of-tasks-waiting", "-mt"),
            "clients wait before they submit more than this and one task for each worker; -1 for no limit",
            whole_number(-1),
            default=-1,
        ),
        Option(
            ("--max-session-bytes",),
            "memory of the scheduler for the tasks of one client; all have twice as much; a quarter of what the host "
            "or control group allows if left out",
            byte_count(1),
            default=None,
            metavar="BYTES",
        ),
        Option(
            ("--client-timeout-seconds", "-ct"),
            "how long the work of a client that is away lives",
            positive_seconds,
            default=60.0,
        ),
        Option(
            ("--worker-timeout-seconds", "-wt"),
            "after how long a silence workers are given up",
            positive_seconds,
            default=60.0,
        ),
        Option(
            ("--result-retention-seconds", "--result-retention", "-rr"),
            "how long results of named sessions are kept after they came or were last read",
            positive_seconds,
            default=86_400.0,
        ),
        Option(
            ("--result-limit", "-rl"),
            "bytes of memory for results of named sessions; those above 16 KiB are in object storage",
            byte_count(1),
            default=2**30,
            metavar="BYTES",
        ),
        Option(
            ("--replicas",),
            "with 2, object storage copies requested results of 256 KiB and more that stay on the host that made them "
            "when it has nothing else to do, so that they outlive that host",
            whole_number(1, 2),
            default=1,
        ),
        Option(
            ("--cluster-capabilities", "-cc"),
            "what all hosts have together, like license=2: a task that requires some takes it while it runs",
            parse_quantities,
            default={},
        ),
        Option(
            ("--object-retention-seconds", "-ot"), "how long orphaned results are kept", positive_seconds, default=60.0
        ),
        *POLICY_OPTIONS,
        *JOURNAL_OPTIONS,
        *SERVER_OPTIONS,
    ),
    refusals=REFUSED_BY_SCHEDULER,
    example="scaler_scheduler tcp://127.0.0.1:2345 --allocate-policy capability",
)

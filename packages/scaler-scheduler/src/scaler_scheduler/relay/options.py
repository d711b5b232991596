"""The command line of `scaler_relay`."""

from __future__ import annotations

from typing import Final

from scaler_io.service.base import SERVICE_OPTIONS, ServiceOptions, refuse_exposed
from scaler_io.service.cli import Command
from scaler_io.service.options import READY_FD, Option, positive_seconds
from scaler_protocol.addresses import Address
from scaler_protocol.capabilities import parse_capabilities
from scaler_protocol.lazy_dataclass import dataclass

_NAMES_OF_THIS_HOST: Final = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "*"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions(ServiceOptions):
    """The relay's options, merged from command line, environment and TOML file."""

    scheduler: Address
    advertised_scheduler_address: Address | None
    per_worker_capabilities: dict[str, int]
    worker_timeout_seconds: float
    death_timeout_seconds: float
    ready_fd: int | None

    @property
    def fallback(self) -> Address:
        """Where hosts connect when the relay is lost."""
        return self.advertised_scheduler_address or self.scheduler

    def _is_here(self, given: Address) -> bool:
        """Whether this is the relay's own port under another name of this host."""
        return given.port == self.address.port != 0 and {given.host, self.address.host} <= _NAMES_OF_THIS_HOST

    def check(self) -> None:
        """Raises ValueError for a wrong address of the scheduler, AddressError for one beyond loopback without keys."""
        for option, given in (
            ("--scheduler", self.scheduler),
            ("--advertised-scheduler-address", self.advertised_scheduler_address),
        ):
            if given == self.address or (given is not None and self._is_here(given)):
                raise ValueError(f"{option} {given} is this relay's own address: give that of the scheduler")
        if self.fallback.is_local and not self.address.is_local:
            raise ValueError(
                "when the relay is lost, its hosts connect to the scheduler, but other hosts than this one cannot "
                f"reach {self.fallback}: give --advertised-scheduler-address"
            )
        refuse_exposed(self.address, self.insecure or self.keys is not None)


COMMAND = Command(
    program="scaler_relay",
    description="Stand between a scheduler and the hosts of a big cluster: to the scheduler they are one host.",
    section="relay",
    config=RelayOptions,
    options=(
        Option(("address", "bind_address"), "where to listen: tcp://host:port or ipc://path", Address.parse),
        Option(
            ("--scheduler", "--scheduler-address", "-s"),
            "the scheduler to take work from, or another relay; hosts connect there when the relay is lost",
            Address.parse_peer,
        ),
        Option(
            ("--advertised-scheduler-address", "-asa"),
            "where hosts connect when the relay is lost, if not there",
            Address.parse_peer,
            default=None,
        ),
        Option(
            ("--per-worker-capabilities", "-pwc"),
            "what each worker of its hosts offers, like gpu=1,linux: other hosts are refused",
            parse_capabilities,
            default={},
        ),
        Option(
            ("--worker-timeout-seconds", "-wt"),
            "after how long a silence workers are given up",
            positive_seconds,
            default=60.0,
        ),
        Option(
            ("--death-timeout-seconds", "-dts", "-dt"),
            "end after this long without the scheduler",
            positive_seconds,
            default=300.0,
        ),
        *SERVICE_OPTIONS,
        READY_FD,
    ),
    example="scaler_relay tcp://127.0.0.1:2400 --scheduler tcp://127.0.0.1:2345",
)

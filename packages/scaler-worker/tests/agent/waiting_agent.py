"""A `scaler_cluster` that waits at a gate when it hands over: `waiting_agent.py <port> <words of scaler_cluster>`."""

from __future__ import annotations

import sys

from scaler_worker import __main__ as program
from scaler_worker.agent.host_replicas import HostReplicas, LeftBehind
from support.gates import wait_at

if __name__ == "__main__":
    port = int(sys.argv.pop(1))
    HostReplicas.hand_over = lambda self, deadline: wait_at(port, LeftBehind())  # type: ignore[method-assign]
    sys.exit(program.main())

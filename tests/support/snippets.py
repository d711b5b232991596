"""Documented programs that must run: some with services that run already, some with their own clusters."""

from __future__ import annotations

SUBMIT = """
import math
from scaler import Client

with Client(address="tcp://127.0.0.1:2345") as client:
    futures = [
        client.submit(math.sqrt, i)
        for i in range(0, 100)
    ]
    result = sum(future.result() for future in futures)

    print(result)
"""

MAP = """
import math
from scaler import Client

with Client(address="tcp://127.0.0.1:2345") as client:
    future = client.submit(math.sqrt, 16)
    print(future.result())

    results = client.map(math.sqrt, [(i,) for i in range(100)])
    print(sum(results))
"""

SQUARE = """
from scaler import Client


def square(value: int):
    return value * value


with Client(address="tcp://127.0.0.1:2345") as client:
    future = client.submit(square, 4)
    print(future.result())
"""

GRAPH = """
from scaler import Client


def inc(i):
    return i + 1


def add(a, b):
    return a + b


def minus(a, b):
    return a - b


graph = {
    "a": 2,
    "b": 2,
    "c": (inc, "a"),
    "d": (add, "a", "b"),
    "e": (minus, "d", "c")
}

with Client(address="tcp://127.0.0.1:2345") as client:
    result = client.get(graph, keys=["e"])
    print(result)
"""

NESTED = """
from scaler import Client


def fibonacci(clnt: Client, n: int):
    if n == 0:
        return 0
    elif n == 1:
        return 1
    else:
        a = clnt.submit(fibonacci, clnt, n - 1)
        b = clnt.submit(fibonacci, clnt, n - 2)
        return a.result() + b.result()


with Client(address="tcp://127.0.0.1:2345") as client:
    result = client.submit(fibonacci, client, 8).result()
    print(result)
"""

CAPABILITIES = """
from scaler import Client

with Client(address="tcp://127.0.0.1:2345") as client:
    future = client.submit_verbose(round, args=(3.15,), kwargs={}, capabilities={"gpu": -1})
    print(future.result())
"""

PROFILING = """
from scaler import Client

def calculate(sec: int):
    return sec * 1

client = Client(address="tcp://127.0.0.1:2345")
fut = client.submit(calculate, 1, profiling=True)

fut.result()

print(fut.profiling_info().duration_us)

print(fut.profiling_info().peak_memory)
"""

COMBO = """
from scaler import SchedulerClusterCombo

cluster = SchedulerClusterCombo(address="tcp://127.0.0.1:2345", n_workers=4)

...

cluster.shutdown()
"""

UVLOOP = """
from scaler import SchedulerClusterCombo

scheduler = SchedulerClusterCombo(address="tcp://127.0.0.1:2345", event_loop="uvloop", n_workers=4)
"""

SEND_OBJECT = """
from scaler import Client
from scaler.cluster.combo import SchedulerClusterCombo

large_object = [1, 2, 3, 4, 5]


def query(object_reference, idx):
    return object_reference[idx]


def main():
    cluster = SchedulerClusterCombo(n_workers=1)

    with Client(address=cluster.get_address()) as client:
        large_object_ref = client.send_object(large_object, name="large_object")
        fut1 = client.submit(query, large_object_ref, 0)
        fut2 = client.submit(query, large_object_ref, 1)
        print(fut1.result())
        print(fut2.result())

    cluster.shutdown()


if __name__ == "__main__":
    main()
"""

GRAPH_WITH_A_FUNCTION = """
from scaler import Client
from scaler.cluster.combo import SchedulerClusterCombo


def inc(i):
    return i + 1


def add(a, b):
    return a + b


def minus(a, b):
    return a - b


graph = {
    "a": 2,
    "b": 2,
    "c": (inc, "a"),
    "d": (add, "a", "b"),
    "e": (minus, "d", "c"),
    "f": add,
}


def main():
    cluster = SchedulerClusterCombo(n_workers=1)

    with Client(address=cluster.get_address()) as client:
        result = client.get(graph, keys=["a", "b", "c", "d", "e", "f"])
        print(result.get("e"))
        print(result)
        print(result == {"a": 2, "b": 2, "c": 3, "d": 4, "e": 1, "f": add})

    cluster.shutdown()


if __name__ == "__main__":
    main()
"""

NESTED_ON_ONE_WORKER = """
from scaler import Client
from scaler.cluster.combo import SchedulerClusterCombo


def fibonacci(client: Client, n: int):
    if n == 0:
        return 0
    elif n == 1:
        return 1
    else:
        a = client.submit(fibonacci, client, n - 1)
        b = client.submit(fibonacci, client, n - 2)
        return a.result() + b.result()


def main():
    cluster = SchedulerClusterCombo(n_workers=1)

    with Client(address=cluster.get_address()) as client:
        result = client.submit(fibonacci, client, 8).result()
        print(result)

    cluster.shutdown()


if __name__ == "__main__":
    main()
"""

DYNAMIC_GRAPH = """
from scaler import Client
from scaler.cluster.combo import SchedulerClusterCombo


def minus(a, b):
    return a - b


def fibonacci(clnt: Client, n: int):
    if n == 0:
        return 0
    elif n == 1:
        return 1
    else:
        fib_graph = {"n": n, "one": 1, "two": 2, "n_minus_one": (minus, "n", "one"), "n_minus_two": (minus, "n", "two")}
        res = clnt.get(fib_graph, keys=["n_minus_one", "n_minus_two"])
        n_minus_one = res.get("n_minus_one")
        n_minus_two = res.get("n_minus_two")
        a = clnt.submit(fibonacci, clnt, n_minus_one)
        b = clnt.submit(fibonacci, clnt, n_minus_two)
        return a.result() + b.result()


def main():
    cluster = SchedulerClusterCombo(n_workers=10)

    with Client(address=cluster.get_address()) as client:
        result = client.submit(fibonacci, client, 8).result()
        print(result)

    cluster.shutdown()


if __name__ == "__main__":
    main()
"""

DISCONNECT = """
from scaler import Client
from scaler.cluster.combo import SchedulerClusterCombo


def main():
    cluster = SchedulerClusterCombo(n_workers=10)
    client = Client(address=cluster.get_address())
    client.clear()
    client.disconnect()
    cluster.shutdown()


if __name__ == "__main__":
    main()
"""

SERIALIZER = """
import enum
import pickle
import struct
from io import BytesIO
from typing import Any

import pandas as pd
from cloudpickle import cloudpickle

from scaler import Serializer


class ObjType(enum.Enum):
    General = b"G"
    Integer = b"I"
    DataFrame = b"D"


class CustomSerializer(Serializer):
    @staticmethod
    def serialize(obj: Any) -> bytes:
        if isinstance(obj, pd.DataFrame):
            buf = BytesIO()
            obj.to_parquet(buf)
            return ObjType.DataFrame.value + buf.getvalue()

        if isinstance(obj, int):
            return ObjType.Integer.value + struct.pack("I", obj)

        return ObjType.General.value + cloudpickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        obj_type = ObjType(payload[:1])
        payload = payload[1:]

        if obj_type == ObjType.DataFrame:
            buf = BytesIO(payload)
            return pd.read_parquet(buf)

        if obj_type == ObjType.Integer:
            return struct.unpack("I", payload)[0]

        return cloudpickle.loads(payload)


from scaler import Client


def add(a, b):
    return a + b


def double(frame):
    return frame * 2


with Client(address="tcp://127.0.0.1:2345", serializer=CustomSerializer) as client:
    print(client.submit(add, 1, 2).result())
    print(client.submit(double, pd.DataFrame({"x": [1, 2]})).result()["x"].tolist())
"""

FOR_SERVICES: dict[str, tuple[str, str]] = {
    "submit": (SUBMIT, r"661\.46\d+\n"),
    "map": (MAP, r"4\.0\n661\.46\d+\n"),
    "square": (SQUARE, r"16\n"),
    "graph": (GRAPH, r"\{'e': 1\}\n"),
    "nested": (NESTED, r"21\n"),
    "capabilities": (CAPABILITIES, r"3\n"),
    "profiling": (PROFILING, r"\d+\n\d+\n"),
    "serializer": (SERIALIZER, r"3\n\[2, 4\]\n"),
}
"""Programs that expect services at port 2345, and what they print."""

WITH_A_CLUSTER: dict[str, tuple[str, str]] = {
    "combo": (COMBO, r""),
    "uvloop": (UVLOOP, r""),
    "send_object": (SEND_OBJECT, r"1\n2\n"),
    "graph": (
        GRAPH_WITH_A_FUNCTION,
        r"1\n\{'a': 2, 'b': 2, 'c': 3, 'd': 4, 'e': 1, 'f': <function add at 0x[0-9a-f]+>\}\nTrue\n",
    ),
    "nested": (NESTED_ON_ONE_WORKER, r"21\n"),
    "dynamic_graph": (DYNAMIC_GRAPH, r"21\n"),
    "disconnect": (DISCONNECT, r""),
}
"""Programs that start a local cluster, and what they print besides its log lines."""

SYMPHONY_SERVICE = """
import array

import cloudpickle
import soamapi


class Message(soamapi.Message):
    def __init__(self, payload: bytes = b""):
        self.__payload = payload

    def set_payload(self, payload: bytes):
        self.__payload = payload

    def get_payload(self) -> bytes:
        return self.__payload

    def on_serialize(self, stream):
        payload_array = array.array("b", self.get_payload())
        stream.write_byte_array(payload_array, 0, len(payload_array))

    def on_deserialize(self, stream):
        self.set_payload(stream.read_byte_array("b"))

class ServiceContainer(soamapi.ServiceContainer):
    def on_create_service(self, service_context):
        return

    def on_session_enter(self, session_context):
        return

    def on_invoke(self, task_context):
        input_message = Message()
        task_context.populate_task_input(input_message)

        fn, *args = cloudpickle.loads(input_message.get_payload())
        output_payload = cloudpickle.dumps(fn(*args))

        output_message = Message(output_payload)
        task_context.set_task_output(output_message)

    def on_session_leave(self):
        return

    def on_destroy_service(self):
        return


if __name__ == "__main__":
    ServiceContainer().run()
"""
"""A service for Symphony."""

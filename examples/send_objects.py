"""Send an object once and use it in many calls."""

from __future__ import annotations

from scaler import Client, ObjectReference, SchedulerClusterCombo


def query(table: dict[str, int], key: str) -> int:
    """The function gets the object itself, not the reference."""
    return table[key]


def total(tables: list[dict[str, int]]) -> int:
    """References may stand anywhere in the arguments."""
    return sum(sum(table.values()) for table in tables)


def main() -> None:
    """A reference in place of the object: as an argument, inside a list, in `map`."""
    with (
        SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        table = {"one": 1, "two": 2, "three": 3}
        reference: ObjectReference[dict[str, int]] = client.send_object(table, name="numbers")

        # What was sent is the table of that moment.
        table["two"] = 22

        print(client.submit(query, reference, "two").result())
        print(client.map(query, [reference] * 3, ["one", "two", "three"]))
        print(client.submit(total, [reference, reference]).result())


if __name__ == "__main__":
    main()

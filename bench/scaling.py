"""Compare scaling policies with Dask's adaptive rule and with an oracle, in virtual time: the table of docs/scaling.md.

python bench/scaling.py [--policy vanilla|capability]
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from scaler_scheduler.scaling.policies import POLICIES
from support.fleet_loads import cases
from support.fleet_table import table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", choices=["vanilla", "capability"], default="capability")
    name = parser.parse_args().policy
    print("\n".join(table(cases(), lambda: POLICIES[name]("", 30.0))))


if __name__ == "__main__":
    main()

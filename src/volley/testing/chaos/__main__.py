# SPDX-License-Identifier: Apache-2.0
"""The command behind `make chaos`: work under faults for a while, then what happened. A failing round is shrunk."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from volley.testing.chaos.agent import inject_into_children
from volley.testing.chaos.arena import STORES, TRANSPORTS
from volley.testing.chaos.campaign import Campaign
from volley.testing.chaos.report import Tally
from volley.testing.fuzz.session import local_session
from volley.testing.s3 import KEYS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m volley.testing.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--transports", default=",".join(TRANSPORTS))
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--json", type=Path, help="a file to add what happened to, after each turn")
    parser.add_argument("--answers", type=Path, help="a folder that keeps Spark's answers for the next run")
    options = parser.parse_args()
    places = [
        (transport, store)
        for store in options.stores.split(",")
        for transport in options.transports.split(",")
    ]
    before = Tally()
    if options.json and options.json.exists():
        before = Tally.from_dict(json.loads(options.json.read_text()))
    with TemporaryDirectory(prefix="volley-chaos-") as directory:
        # Also the JVM, whose children are the sidecars of transport spark.
        os.environ.update(KEYS)
        with inject_into_children(Path(directory) / "agent"):
            spark = local_session("volley chaos")
        spark.conf.set("spark.volley.history.dir", "off")
        campaign = Campaign(spark, options.seed, Path(directory), options.answers)
        for _ in campaign.run(60 * options.minutes, places, options.first):
            if options.json:
                together = before + campaign.tally
                options.json.write_text(json.dumps(together.to_dict(), indent=1) + "\n")
        print(f"seed {options.seed}\n{campaign.tally}")
        for problem in campaign.tally.problems:
            print(f"  {problem}")
        spark.stop()
    return 1 if campaign.tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())

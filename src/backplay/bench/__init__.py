"""The benchmark: the paper's protocol from a config to its tables (docs/benchmark.md).

As calls::

    config = bench.load("configs/quick.yaml")
    bench.run(config, "out/quick", engine="processes", workers=2)
    print(bench.write(bench.build("out/quick"), "md"))
    bench.read("out/quick").to_pandas()
"""

from backplay.bench.config import Config, load
from backplay.bench.engines import ENGINES
from backplay.bench.formats import FORMATS, records, write
from backplay.bench.runs import Summary, run
from backplay.bench.store import read
from backplay.bench.tables import build

__all__ = ["ENGINES", "FORMATS", "Config", "Summary", "build", "load", "read", "records", "run", "write"]

"""LLM serving workloads, per client.

```python
from servegen import Workload, plan, read_pool, stream

for table in stream(plan(Workload(rate=5.0, hours=1, seed=1), read_pool("sample"))):
    print(table.num_rows)  # Arrow tables, sorted by time
```

Generation is here. `servegen.fit`, `servegen.compare`, `servegen.replay`, `servegen.calibrate` and `servegen.size` hold
`fit_log`, `compare_log`, `replay_requests`, `calibrate` and `size_workload`; they import more.
"""

from __future__ import annotations

from servegen.compose import Plan, plan, stream
from servegen.errors import BadFile, BadRequest, MissingExtra, ServeGenError, ServerError
from servegen.export import read_requests, write_requests
from servegen.logs import Log, LogOptions, read_log
from servegen.pool import Pool, read_pool, write_pool
from servegen.workload import Sessions, Slo, Workload, read_workload, write_workload

__version__ = "0.1.0"

__all__ = [
    "BadFile",
    "BadRequest",
    "Log",
    "LogOptions",
    "MissingExtra",
    "Plan",
    "Pool",
    "ServeGenError",
    "ServerError",
    "Sessions",
    "Slo",
    "Workload",
    "plan",
    "read_log",
    "read_pool",
    "read_requests",
    "read_workload",
    "stream",
    "write_pool",
    "write_requests",
    "write_workload",
]

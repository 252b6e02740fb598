"""Reads /metrics, /health and /status of every process that `quorate status --json` lists on standard input."""

import json
import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

processes = [json.loads(line) for line in sys.stdin]
if len(processes) != 11:
    sys.exit(f"{len(processes)} processes, not 11")
for process in processes:
    place = f"http://{process['bound']['http']}"
    with urllib.request.urlopen(f"{place}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    if not families or any(not sample.name.startswith("quorate_") for sample in samples):
        sys.exit(f"{process['name']}: its metrics are not quorate's: {families}")
    with urllib.request.urlopen(f"{place}/health", timeout=10) as answer:
        if answer.status != 200:
            sys.exit(f"{process['name']}: /health says {answer.status}")
    with urllib.request.urlopen(f"{place}/status", timeout=10) as answer:
        status = json.load(answer)
    if (status["name"], status["role"]) != (process["name"], process["role"]):
        sys.exit(f"{process['name']}: /status says it is {status}")
    if process["role"] == "gateway":
        # This gateway loaded the sample.
        values = {(sample.name, sample.labels.get("kind"), sample.labels.get("class")): sample.value for sample in samples}
        for name, kind, ended in [
            ("quorate_sql_statements_total", "copy", "00"),
            ("quorate_sql_statements_total", "definition", "00"),
            ("quorate_sql_statement_seconds_count", "copy", None),
            ("quorate_sql_connections_total", None, None),
            ("quorate_sql_bytes_sent_total", None, None),
        ]:
            if values.get((name, kind, ended), 0) < 1:
                sys.exit(f"{process['name']}: {name} of {kind} was not counted: {sorted(map(str, values))}")
    print(f"{process['name']}: {len(families)} metrics, {len(samples)} samples")

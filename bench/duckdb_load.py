"""Asks DuckDB the questions of a folder that `quorate bench wire --emit` wrote, from so many threads at once.

usage: duckdb_load.py FOLDER CLIENTS SECONDS -> one line of JSON

Every thread has a cursor of its own on one database in memory and asks its next question as soon as it has the rows of
the last; every answer's rows are counted.
"""

import datetime
import json
import random
import sys
import threading
import time

import duckdb

WARM_UP = 2.0
READ = {"text": str, "integer": int, "bigint": int, "date": datetime.date.fromisoformat}

folder, clients, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
templates = json.load(open(f"{folder}/templates.json"))
questions = []
for line in open(f"{folder}/questions.jsonl"):
    line = json.loads(line)
    types = templates[line["template"]]["types"]
    parameters = [READ[ty](text) for ty, text in zip(types, line["parameters"])]
    questions.append((templates[line["template"]]["sql"], parameters, line["rows"]))

database = duckdb.connect()
database.execute(open(f"{folder}/schema.sql").read())
database.execute(f"copy tickets from '{folder}/tickets.tsv' (delimiter '\t', header false, quote '', escape '', nullstr '\\N')")

latencies = []
begin = threading.Event()
measure_from = measure_until = 0.0


def ask(number):
    cursor, draw, own = database.cursor(), random.Random(number), []
    begin.wait()
    while True:
        sql, parameters, rows = draw.choice(questions)
        asked = time.monotonic()
        if asked >= measure_until:
            break
        found = cursor.execute(sql, parameters).fetchall()
        answered = time.monotonic()
        assert len(found) == rows, f"{len(found)} rows instead of {rows}: {sql} {parameters}"
        if measure_from <= answered < measure_until:
            own.append(answered - asked)
    latencies.extend(own)


threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
for thread in threads:
    thread.start()
measure_from = time.monotonic() + WARM_UP
measure_until = measure_from + seconds
begin.set()
for thread in threads:
    thread.join()
latencies.sort()
at = lambda part: latencies[min(len(latencies) - 1, int(len(latencies) * part))] * 1000
print(json.dumps({
    "system": f"DuckDB {duckdb.__version__}", "clients": clients, "seconds": seconds, "executions": len(latencies),
    "queries_per_second": len(latencies) / seconds, "latency_p50_ms": at(0.5), "latency_p99_ms": at(0.99),
}))

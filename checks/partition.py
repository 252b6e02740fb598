"""Cuts, kills and pauses processes of a default cluster. Each process has its own network namespace.

`checks/partition` runs this in a hub namespace. Veth pairs join all other namespaces to the hub, and the hub
forwards between them. To cut a direction, a rule in the hub silently drops everything that one address sends to
another. Two writers at each of two gateways insert rows and set registers, with short pauses after each answer. A
reader at each gateway reads both. For each fault a line shows the longest time that each gateway's writers were
without an acknowledged write.

Faults: each ordered pair of roles is cut one way, and each pair is cut both ways. Each role is killed and started
again. Each role is paused for 0.3 to 15 s. The seed orders the faults and draws the processes. A short run takes
the first faults.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import psycopg

CUT_SECONDS = 10
# Seconds for which the load runs on after a fault.
AFTERMATH_SECONDS = 2
SETTLE_SECONDS = 60
# Longest time in milliseconds without an acknowledged write, by kind of fault.
BOUNDS_MS = {"cut": 2000, "kill": 1000, "pause": 4500}
# Longest pause in seconds that must not expel a process.
HICCUP_SECONDS = 1.0
ROLES = ["lead", "router", "storage", "standby", "super", "gateway"]
PLAN = [("router", 3), ("super", 2), ("storage", 5), ("gateway", 2)]
WRITERS = 2
REGISTERS = 4


class Process:
    """One process of the cluster, in its own namespace."""

    def __init__(self, cluster, role, number, node):
        self.cluster, self.role, self.node = cluster, role, node
        self.name = f"{role}-{number}"
        self.namespace = f"{cluster.prefix}-{self.name}"
        self.address = f"10.77.{node}.2"
        self.child = None
        self.starts = 0
        hub = f"10.77.{node}.1"
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", f"hub{node}", "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        run("ip", "address", "add", f"{hub}/30", "dev", f"hub{node}")
        run("ip", "link", "set", f"hub{node}", "up")
        for words in (["address", "add", f"{self.address}/30", "dev", "eth0"], ["link", "set", "lo", "up"],
                      ["link", "set", "eth0", "up"], ["route", "add", "default", "via", hub]):
            run("ip", "-n", self.namespace, *words)

    def start(self):
        others = [p for p in self.cluster.processes if p.role == "router" and p is not self]
        settings = {
            "domain": self.cluster.domain, "node": self.node, "name": self.name, "role": self.role,
            "listen": f"{self.address}:24701", "http_listen": f"{self.address}:24702",
            "found": self.node == 1, "routers": [f"{p.address}:24701" for p in others],
            "insecure": True, "supervised": True,
        }
        if self.role == "gateway":
            settings["sql_listen"] = f"{self.address}:24700"
        path = f"{self.cluster.place}/{self.name}.toml"
        with open(path, "w") as file:
            file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        log = open(f"{self.cluster.place}/{self.name}.log", "a")
        self.child = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, self.cluster.binary, "node", "--config", path],
            stdin=subprocess.PIPE, stdout=log, stderr=log)
        log.close()
        self.starts += 1

    def signal(self, number):
        # `ip netns exec` replaces itself by the program.
        os.kill(self.child.pid, number)

    def status(self, patience=1.0):
        try:
            with urllib.request.urlopen(f"http://{self.address}:24702/status", timeout=patience) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None


class Cluster:
    """All processes, and the cuts between them."""

    def __init__(self, prefix, binary, place):
        self.prefix, self.binary, self.place = prefix, binary, place
        self.domain = os.urandom(16).hex()
        self.processes = []
        with open("/proc/sys/net/ipv4/ip_forward", "w") as file:
            file.write("1")
        run("ip", "link", "set", "lo", "up")
        for role, count in PLAN:
            for number in range(1, count + 1):
                self.processes.append(Process(self, role, number, len(self.processes) + 1))

    def start(self):
        for process in self.processes:
            process.start()
        await_true(lambda: self.is_whole(), SETTLE_SECONDS, "the cluster does not come up")

    def named(self, role):
        return [p for p in self.processes if p.role == role]

    def lead(self):
        for router in self.named("router"):
            if (router.status() or {}).get("state") == "leading":
                return router
        return None

    def members(self):
        """Returns the ids of all members and routers as the lead router reports them, or None without a report."""
        lead = self.lead()
        status = lead and lead.status()
        if not status:
            return None
        states = {member["process"]: member["state"] for member in status["members"]}
        states.update({router: "router" for router in status["routers"]})
        return states

    def is_whole(self):
        """Whether all processes run and belong to the cluster, and four storage processes serve."""
        states = self.members()
        if states is None:
            return False
        reports = [p.status() for p in self.processes]
        if any(report is None or report["process"] not in states for report in reports):
            return False
        serving = sum((report["role"], report["state"]) == ("storage", "serving") for report in reports)
        return serving == 4 and len(states) == len(self.processes)

    def revive(self):
        """Restarts the processes that have ended, like a supervisor, and returns them."""
        ended = [p for p in self.processes if p.child.poll() is not None]
        for process in ended:
            process.start()
        return ended

    def cut(self, pairs, action):
        for a, b in pairs:
            run("ip", "rule", action, "priority", "100", "from", a.address, "to", b.address, "blackhole")

    def stop(self):
        for process in self.processes:
            if process.child is not None and process.child.poll() is None:
                process.signal(signal.SIGKILL)
                process.child.wait()


class Client(threading.Thread):
    """Repeats SQL statements at one gateway."""

    def __init__(self, number, gateway, load):
        super().__init__(daemon=True)
        self.number, self.gateway, self.load = number, gateway, load
        self.connection = None
        self.trouble = ""

    def run(self):
        while not self.load.over.is_set():
            try:
                if self.connection is None:
                    # A connection without answers must not outlive the fault by minutes.
                    self.connection = psycopg.connect(
                        f"host={self.gateway.address} port=24700 user=quorate dbname=quorate connect_timeout=2 "
                        "tcp_user_timeout=3000 keepalives_idle=1 keepalives_interval=1 keepalives_count=3",
                        autocommit=True)
                self.once()
            except psycopg.Error as error:
                self.trouble = f"{error.sqlstate}: {error}"
                if self.connection is None or self.connection.closed:
                    self.connection = None
                    time.sleep(0.02)
            time.sleep(0.004)


class Writer(Client):
    def __init__(self, number, gateway, load):
        super().__init__(number, gateway, load)
        self.sent = 0
        self.acknowledged = []
        self.acknowledged_at = []

    def once(self):
        self.sent += 1
        number = self.sent
        if number % 4 == 0:
            key, value = f"r{number // 4 % REGISTERS}", f"{self.number}-{number}"
            with self.load.operation(self.number, key, "write") as operation:
                operation["value"] = value
                self.connection.execute("update registers set value = %s where name = %s", (value, key))
        self.connection.execute("insert into acknowledged values (%s, %s)", (self.number, number))
        self.acknowledged.append(number)
        self.acknowledged_at.append(time.monotonic())

    def silence(self, begin, end):
        """Returns the longest time without an acknowledged write that overlaps this interval."""
        times = list(self.acknowledged_at)
        longest, last = 0.0, begin
        for at in times:
            if at < begin:
                last = at
            elif last < end:
                longest, last = max(longest, at - last), at
        return max(longest, end - last) if last < end else longest


class Reader(Client):
    def once(self):
        key = f"r{random.randrange(REGISTERS)}"
        with self.load.operation(self.number, key, "read") as operation:
            row = self.connection.execute("select value from registers where name = %s", (key,)).fetchone()
            operation["value"] = row[0]
        writer = random.choice(self.load.writers)
        least = len(writer.acknowledged)
        found, = self.connection.execute(
            "select count(*) from acknowledged where client = %s", (writer.number,)).fetchone()
        most = writer.sent
        if not least <= found <= most:
            self.load.impossible.append(f"{found} rows of writer {writer.number}, of {least} to {most}")
        time.sleep(0.05)


class Operation:
    """One operation of the history of the registers."""

    def __init__(self, load, client, key, op):
        self.load = load
        self.line = {"client": client, "key": key, "op": op, "start_ns": time.monotonic_ns()}

    def __enter__(self):
        return self.line

    def __exit__(self, kind, error, trace):
        # A write without an answer may still take effect. A read without an answer says nothing.
        self.line["outcome"] = "ok" if kind is None else "unknown"
        if kind is None:
            self.line["end_ns"] = time.monotonic_ns()
        self.load.history.append(self.line)


class Load:
    """The writers and readers, and their results."""

    def __init__(self, cluster):
        self.over = threading.Event()
        self.history, self.impossible = [], []
        self.started_ns = time.monotonic_ns()
        self.writers, self.readers = [], []
        for gateway in cluster.named("gateway"):
            for _ in range(WRITERS):
                self.writers.append(Writer(len(self.writers) + 1, gateway, self))
            self.readers.append(Reader(100 + len(self.readers), gateway, self))
        self.clients = self.writers + self.readers

    def operation(self, client, key, op):
        return Operation(self, client, key, op)

    def start(self):
        for client in self.clients:
            client.start()

    def wait_since(self, since):
        def all_written():
            return all(w.acknowledged_at and w.acknowledged_at[-1] > since for w in self.writers)
        await_true(all_written, SETTLE_SECONDS, lambda: "; ".join(w.trouble for w in self.writers))

    def stop(self):
        self.over.set()
        for client in self.clients:
            client.join(30)


class Fault:
    """A fault: its kind, and the roles that it hits."""

    def __init__(self, kind, roles, both=False, seconds=0.0):
        self.kind, self.roles, self.both, self.seconds = kind, roles, both, seconds

    def __str__(self):
        if self.kind == "cut":
            return f"cut {'=' if self.both else '-'} {self.roles[0]} {self.roles[1]}"
        return f"{self.kind} {self.roles[0]}" + (f" {self.seconds:.1f} s" if self.seconds else "")


def faults(seed):
    """Returns all faults in the order of this seed."""
    cuts = [Fault("cut", (a, b)) for a in ROLES for b in ROLES if (a, b) not in [("lead",) * 2, ("standby",) * 2]]
    cuts += [Fault("cut", (a, b), both=True) for i, a in enumerate(ROLES) for b in ROLES[i:]
             if (a, b) not in [("lead",) * 2, ("standby",) * 2]]
    draw = random.Random(seed)
    kills = [Fault("kill", (role,)) for role in ROLES]
    pauses = [Fault("pause", (role,), seconds=seconds) for role in ROLES
              for seconds in (draw.uniform(0.3, HICCUP_SECONDS), draw.uniform(HICCUP_SECONDS, 5), draw.uniform(5, 15))]
    # A short run has some faults of each kind.
    for kind in (cuts, kills, pauses):
        draw.shuffle(kind)
    mixed = []
    while cuts or kills or pauses:
        for kind, share in ((cuts, 3), (kills, 1), (pauses, 1)):
            mixed += [kind.pop() for _ in range(min(share, len(kind)))]
    return mixed


def choose(cluster, draw, roles):
    """Draws a process of each role. No process is drawn twice."""
    lead = cluster.lead()
    chosen = []
    for role in roles:
        if role == "lead":
            found = [lead]
        elif role == "router":
            found = [p for p in cluster.named("router") if p is not lead]
        elif role in ("storage", "standby"):
            state = {"storage": "serving", "standby": "standby"}[role]
            found = [p for p in cluster.named("storage") if (p.status() or {}).get("state") == state]
        else:
            found = cluster.named(role)
        chosen.append(draw.choice([p for p in found if p not in chosen]))
    return chosen


def inflict(cluster, load, fault, draw):
    """Inflicts a fault, ends it, and reports the result."""
    chosen = choose(cluster, draw, fault.roles)
    before = {p: (p.status() or {}).get("process") for p in cluster.processes}
    begin = time.monotonic()
    ended = []

    def watch(seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ended.extend(cluster.revive())
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))

    excused = set()
    if fault.kind == "cut":
        pairs = [tuple(chosen)] + ([tuple(reversed(chosen))] if fault.both else [])
        cluster.cut(pairs, "add")
        watch(CUT_SECONDS)
        cluster.cut(pairs, "delete")
    elif fault.kind == "kill":
        excused = set(chosen)
        chosen[0].signal(signal.SIGKILL)
        chosen[0].child.wait()
        # Nobody restarts the process at once.
        time.sleep(3)
    else:
        if fault.seconds > HICCUP_SECONDS:
            excused = set(chosen)
        chosen[0].signal(signal.SIGSTOP)
        watch(fault.seconds)
        chosen[0].signal(signal.SIGCONT)
    watch(AFTERMATH_SECONDS)
    end = time.monotonic()
    load.wait_since(end)
    silences = {w: w.silence(begin, end) for w in load.writers}
    apart = chosen if fault.kind != "cut" else []
    settled = True
    try:
        def whole():
            ended.extend(cluster.revive())
            return cluster.is_whole()
        await_true(whole, SETTLE_SECONDS, "")
    except TimeoutError:
        settled = False
    # A process that ended, or that runs under another id, was removed.
    removed = {p for p in cluster.processes if before[p] and (p.status() or {}).get("process") != before[p]}
    false = sorted(p.name for p in (removed | set(ended)) - excused)
    worst = lambda which: {f"{w.gateway.name}/{w.number}": round(1000 * s) for w, s in silences.items() if which(w)}
    return {
        "fault": str(fault), "kind": fault.kind, "processes": [p.name for p in chosen],
        "lead": (cluster.lead() or chosen[0]).name,
        "longest_silence_ms": worst(lambda w: w.gateway not in apart),
        "longest_silence_apart_ms": worst(lambda w: w.gateway in apart),
        "false_removals": false, "settled": settled,
    }


def broken_bounds(line):
    bound = BOUNDS_MS[line["kind"]]
    broken = [f"{writer} stood still for {ms} ms, not {bound}"
              for writer, ms in line["longest_silence_ms"].items() if ms > bound]
    broken += [f"{name} was removed" for name in line["false_removals"]]
    if not line["settled"]:
        broken.append(f"the cluster was not whole again after {SETTLE_SECONDS} s")
    return broken


def verify(cluster, load):
    """Compares the acknowledged writes with the cluster's rows."""
    connection = psycopg.connect(
        f"host={cluster.named('gateway')[0].address} port=24700 user=quorate dbname=quorate", autocommit=True)
    rows = connection.execute("select client, number from acknowledged").fetchall()
    there = set(rows)
    acknowledged = {(w.number, n) for w in load.writers for n in w.acknowledged}
    sent = {(w.number, n) for w in load.writers for n in range(1, w.sent + 1)}
    path = f"{cluster.place}/history.jsonl"
    registers = [{"client": 0, "key": f"r{n}", "op": "write", "value": "0", "start_ns": load.started_ns - 2,
                  "end_ns": load.started_ns - 1, "outcome": "ok"} for n in range(REGISTERS)]
    with open(path, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in registers + load.history)
    judged = subprocess.run([cluster.binary, "check", "--json", path], capture_output=True, text=True)
    return {
        "acknowledged": len(acknowledged), "lost": len(acknowledged - there), "doubled": len(rows) - len(there),
        "forged": len(there - sent), "impossible_counts": len(load.impossible),
        "operations": len(load.history), "atomic": judged.returncode == 0,
        "history": "" if judged.returncode == 0 else (judged.stdout + judged.stderr).strip(),
    }


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def await_true(condition, patience, otherwise):
    until = time.monotonic() + patience
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(otherwise() if callable(otherwise) else otherwise)
        time.sleep(0.05)


def show(line, as_json):
    if as_json:
        print(json.dumps(line), flush=True)
        return
    words = lambda silences: " ".join(f"{writer} {ms}" for writer, ms in silences.items())
    apart = line["longest_silence_apart_ms"]
    print(f"{line['fault']} ({', '.join(line['processes'])}): longest_silence_ms {words(line['longest_silence_ms'])}"
          + (f"; apart {words(apart)}" if apart else "")
          + "".join(f"; BROKEN: {what}" for what in line["broken"]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="no fault begins later; 300 by default")
    parser.add_argument("--seed", type=int, help="drawn and printed when not given")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--binary", required=True, help="the quorate to run; by default a debug build of this tree")
    parser.add_argument("--keep", metavar="DIR", help="where configurations, logs and the history stay")
    parser.add_argument("--only", metavar="TEXT", help="only faults whose name has this in it, again and again")
    parser.add_argument("--prefix", required=True, help=argparse.SUPPRESS)
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
    planned = [fault for fault in faults(seed) if not args.only or args.only in str(fault)]
    draw = random.Random(seed + 1)
    if not args.json:
        print(f"seed {seed}, {len(planned)} faults", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        place = args.keep or temporary
        os.makedirs(place, exist_ok=True)
        cluster = Cluster(args.prefix, os.path.abspath(args.binary), place)
        try:
            return work(args, cluster, planned, draw, seed)
        finally:
            cluster.stop()


def work(args, cluster, planned, draw, seed):
    began = time.monotonic()
    cluster.start()
    with psycopg.connect(f"host={cluster.named('gateway')[0].address} port=24700 user=quorate dbname=quorate",
                         autocommit=True) as connection:
        connection.execute("create table acknowledged (client int, number int) with (partition_by = 'hash(number)')")
        connection.execute("create table registers (name text primary key, value text)")
        for number in range(REGISTERS):
            connection.execute("insert into registers values (%s, '0')", (f"r{number}",))
    load = Load(cluster)
    load.start()
    load.wait_since(time.monotonic())
    failed, done, worst = False, 0, {}
    while planned and time.monotonic() - began < args.seconds:
        fault = planned.pop(0)
        if args.only:
            planned.append(fault)
        line = inflict(cluster, load, fault, draw)
        line["broken"] = broken_bounds(line)
        failed |= bool(line["broken"])
        done += 1
        worst[fault.kind] = max([worst.get(fault.kind, 0), *line["longest_silence_ms"].values()])
        show(line, args.json)
        if not line["settled"]:
            break
    load.stop()
    summary = {"seed": seed, "faults": done, "left": 0 if args.only else len(planned), "longest_silence_ms": worst,
               **verify(cluster, load)}
    failed |= bool(summary["lost"] or summary["doubled"] or summary["forged"] or summary["impossible_counts"])
    failed |= not summary["atomic"]
    if args.json:
        print(json.dumps(summary))
    else:
        print("; ".join(f"{key} {value}" for key, value in summary.items()))
        for what in load.impossible[:5]:
            print(f"impossible: {what}")
        if failed:
            print(f"failed; again with: checks/partition --seed {seed} --seconds {args.seconds:g}")
    return 1 if failed else 0


sys.exit(main())

"""Drives the processes of real clusters against their bounds, and measures the memory of each process.

`checks/bounds` runs this. Each case starts a cluster of its own, does to it what a hostile or unlucky client could do,
and fails if a process starts again, panics, holds more than 512 MiB beyond the data that it keeps, or leaves a
request without an answer. A line shows the peak memory (VmHWM) of the process of each role that took most.

The cases are small unless `--full` is given. The full sizes take about twenty minutes.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import urllib.request

MIB = 1 << 20
# Most memory in bytes that a process may hold beyond its data.
BEYOND_DATA_MAX = 512 * MIB
# Time in seconds after which a request without an answer is a failure.
ANSWER_SECONDS = 60
# The beginnings of answers that a client gets if replicas, or the memory for it, are busy.
LATE = ("BUSY ", "MAYBEAPPLIED ", "UNANSWERED ")
# The roles whose doors are tried.
ROLES = ["router", "storage", "gateway", "cell"]


class Failure(Exception):
    """A bound or a promise that does not hold."""


def require(holds, words):
    if not holds:
        raise Failure(words)


def await_true(condition, seconds, words):
    """Waits until the condition holds, and returns the seconds that passed."""
    began = time.monotonic()
    while not condition():
        require(time.monotonic() - began < seconds, f"{words} within {seconds} s")
        time.sleep(0.1)
    return time.monotonic() - began


class Cluster:
    """A local cluster in a temporary directory, with the peaks of its processes."""

    def __init__(self, binary, *flags):
        self.binary, self.flags = binary, flags
        self.place = tempfile.mkdtemp(prefix="quorate-bounds-")
        self.peaks = {}
        self.over = threading.Event()
        self.sampler = threading.Thread(target=self.sample, daemon=True)

    def __enter__(self):
        self.up()
        self.sampler.start()
        return self

    def __exit__(self, kind, error, trace):
        self.over.set()
        self.sampler.join()
        self.quorate("down", "--yes", check=False)
        shutil.rmtree(self.place)

    def quorate(self, *words, check=True):
        environment = dict(os.environ, QUORATE_DATA_DIR=f"{self.place}/data")
        said = subprocess.run([self.binary, *words], env=environment, capture_output=True, text=True)
        require(not check or said.returncode == 0, f"quorate {words[0]}: {said.stderr or said.stdout}")
        return said.stdout

    def up(self):
        """Starts the cluster, and returns the seconds that it took."""
        began = time.monotonic()
        self.quorate("up", "--detach", "--empty", "--port", "0", *self.flags)
        took = time.monotonic() - began
        self.first = {it["name"]: it for it in self.processes()}
        return took

    def processes(self):
        return [json.loads(line) for line in self.quorate("status", "--json").splitlines()]

    def named(self, role):
        return [it for it in self.first.values() if it["role"] == role]

    def address(self, role, door, number=0):
        host, port = self.named(role)[number]["bound"][door].rsplit(":", 1)
        return host, int(port)

    @staticmethod
    def signal(process, number):
        os.kill(process["pid"], number)

    @staticmethod
    def report(process, patience=5.0):
        """Returns what a process says at `/status`, or None if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{process['bound']['http']}/status", timeout=patience) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    @staticmethod
    def hashed_bytes(process):
        """Returns the number of bytes that a process hashed when it last read its journal."""
        with open(process["log"]) as log:
            found = re.findall(r"\bhashed_bytes=(\d+)", log.read())
        return int(found[-1]) if found else 0

    def sample(self):
        while not self.over.wait(0.5):
            self.measure()

    def measure(self):
        for process in list(self.first.values()):
            bytes_now = peak(process["pid"])
            if bytes_now is not None:
                self.peaks[process["name"]] = max(bytes_now, self.peaks.get(process["name"], 0))

    def judge(self, data=0):
        """Checks that every process still lives its first life within its bound. `data` is its data in bytes."""
        self.measure()
        for process in self.processes():
            name = process["name"]
            require(process["pid"] == self.first[name]["pid"], f"{name} started again")
            with open(process["log"]) as log:
                lines = [line for line in log if "panicked" in line]
            require(not lines, f"{name}: {''.join(lines)}")
            held = self.peaks[name]
            require(held <= BEYOND_DATA_MAX + data,
                    f"{name} held {held // MIB} MiB, of which at most {data // MIB} MiB are data")
        roles = {}
        for process in self.first.values():
            roles[process["role"]] = max(roles.get(process["role"], 0), self.peaks[process["name"]])
        return ", ".join(f"{role} {held // MIB} MiB" for role, held in roles.items())


def peak(pid):
    """Returns the peak memory of a process in bytes, or None if it has ended."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return None


class Sql:
    """A client of the PostgreSQL protocol that sends simple queries."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=ANSWER_SECONDS)
        self.file = self.socket.makefile("rb")
        words = b"user\0quorate\0database\0quorate\0\0"
        self.socket.sendall(struct.pack("!ii", len(words) + 8, 196608) + words)
        self.answer()

    def send(self, text):
        text = text.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)

    def answer(self):
        """Returns the SQLSTATE and text of the first error, or None, and the values of the rows."""
        error, rows = None, []
        while True:
            kind, length = struct.unpack("!ci", self.file.read(5))
            body = self.file.read(length - 4)
            if kind == b"E":
                fields = {field[:1]: field[1:] for field in body.split(b"\0") if field}
                error = error or f"{fields[b'C'].decode()} {fields[b'M'].decode()[:200]}"
            elif kind == b"D":
                rows.append(self.row(body))
            elif kind == b"Z":
                return error, rows

    @staticmethod
    def row(body):
        (count,), at, values = struct.unpack_from("!h", body), 2, []
        for _ in range(count):
            (length,) = struct.unpack_from("!i", body, at)
            at += 4
            values.append(None if length < 0 else body[at:at + length])
            at += max(length, 0)
        return values

    def ask(self, text):
        self.send(text)
        return self.answer()

    def done(self, text):
        error, rows = self.ask(text)
        require(error is None, f"{text[:60]}: {error}")
        return rows

    def close(self):
        self.file.close()
        self.socket.close()


class Redis:
    """A client of the Redis protocol."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=ANSWER_SECONDS)
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"".join([b"*%d\r\n" % len(words)] + [b"$%d\r\n%b\r\n" % (len(it), it) for it in words]))

    def answer(self):
        """Returns a value, or an error as an object of `Refusal`."""
        line = self.file.readline()
        require(line.endswith(b"\r\n"), "the cell closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            return Refusal(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self.file.read(length + 2)[:-2]
        require(kind == b"*", f"the cell answers {line[:60]}")
        return [self.answer() for _ in range(int(rest))]

    def ask(self, *words):
        self.send(*words)
        return self.answer()

    def done(self, *words):
        """Repeats a write until it succeeds. On a busy machine replicas may answer too late."""
        said = None

        def is_done():
            nonlocal said
            said = self.ask(*words)
            require(not isinstance(said, Refusal) or said.startswith(LATE), f"{words[0].upper()}: {said}")
            return not isinstance(said, Refusal)

        await_true(is_done, ANSWER_SECONDS, f"{words[0].upper()} does not succeed")

    def close(self):
        self.file.close()
        self.socket.close()


class Refusal(str):
    """An error that a cell answers."""


def failures(binary, full):
    """Long keys that violate a constraint, in statements that span ranges, many times."""
    number, size = (600, 15 * MIB) if full else (20, MIB)
    with Cluster(binary) as cluster:
        sql = Sql(cluster.address("gateway", "sql"))
        sql.done("create table keyed (key text primary key)")
        key = "k" * size
        sql.done(f"insert into keyed values ('{key}')")
        for index in range(number):
            # The second row of the statement is in another range for some indexes.
            error, _ = sql.ask(f"insert into keyed values ('{key}'), ('other {index}')")
            require(error and error.startswith("23505 "), f"failing INSERT {index} ends with {error}")
        require(sql.done("select count(*) from keyed")[0] == [b"1"], "a failing INSERT left a row")
        sql.close()
        said = cluster.judge(data=4 * size)
        cluster.quorate("down", "--yes")
        cluster.peaks.clear()
        took = cluster.up()
        sql = Sql(cluster.address("gateway", "sql"))
        require(sql.done("select count(*) from keyed")[0] == [b"1"], "the restart lost the row")
        sql.close()
        again = cluster.judge(data=4 * size)
        return f"{number} INSERTs with keys of {size // MIB} MiB; {said}; restarted in {took:.1f} s; then {again}"


def answers(binary, full):
    """An MGET whose answer would take 256 GiB."""
    with Cluster(binary, "--memory", "--storage", "0", "--cells", "3") as cluster:
        redis = Redis(cluster.address("cell", "redis"))
        redis.done("set", "large", b"v" * (4 * MIB))
        cluster.measure()
        before = max(cluster.peaks.values())
        for _ in range(5 if full else 1):
            said = redis.ask("mget", *["large"] * 65_535)
            require(isinstance(said, Refusal), "the MGET is answered")
        # The client that was refused goes on, and so do other clients.
        require(redis.ask("get", "large") == b"v" * (4 * MIB), "GET is refused")
        other = Redis(cluster.address("cell", "redis", 1))
        require(other.ask("get", "large") == b"v" * (4 * MIB), "GET at another cell is refused")
        redis.close()
        other.close()
        peaks = cluster.judge()
        grown = max(cluster.peaks.values()) - before
        return f"refused: {said[:70]!r}; {peaks}; the largest cell grew by {grown // MIB} MiB"


def tombstones(binary, full):
    """Deletes of fields that never existed, and of fields that existed, with one cell away."""
    rounds, size = (17, 4 * MIB) if full else (3, MIB)
    with Cluster(binary, "--storage", "0", "--cells", "3") as cluster:
        redis = Redis(cluster.address("cell", "redis"))
        away = cluster.named("cell")[2]
        redis.done("hset", "hash", "kept", "1")
        reports = [cluster.report(cell)["cell"] for cell in cluster.named("cell")]
        bytes_before, forgotten_before = reports[0]["bytes"], reports[0]["forgotten"]
        cluster.signal(away, signal.SIGSTOP)
        refused = 0
        try:
            for index in range(rounds):
                names = [f"{index} {field} ".ljust(1024, "f") for field in range(size // 1024)]
                said = redis.ask("hdel", "hash", *names)
                refused += isinstance(said, Refusal)
                require(isinstance(said, Refusal) or said == 0, f"HDEL of fresh names says {said}")
            # Fields that existed leave tombstones until the cell that is away has seen them go.
            for index in range(1000):
                redis.done("hset", f"queue {index % 10}", f"job {index}", "x" * 100)
                redis.done("hdel", f"queue {index % 10}", f"job {index}")
            largest = max(cluster.report(cell)["cell"]["bytes"] for cell in cluster.named("cell")[:2])
            require(redis.ask("hget", "hash", "kept") == b"1", "HGET with a cell away")
        finally:
            cluster.signal(away, signal.SIGCONT)

        def is_collected():
            reports = [cluster.report(cell) for cell in cluster.named("cell")]
            return all(it and it["cell"]["bytes"] == bytes_before and it["cell"]["keys"] == 1 for it in reports)

        took = await_true(is_collected, 60, "the tombstones are not collected")
        require(redis.ask("hget", "hash", "kept") == b"1", "HGET after the cell came back")
        redis.close()
        forgotten = cluster.report(cluster.named("cell")[0])["cell"]["forgotten"] - forgotten_before
        said = cluster.judge(data=rounds * size * 2)
        return (f"{rounds} HDELs of {size // MIB} MiB ({refused} refused), a cell held {largest // 1024} KiB; "
                f"{forgotten} entries collected {took:.1f} s after the cell came back; {said}")


def heads(binary, full):
    """A restart from journals full of planted heads of records, next to one from ordinary bytes."""
    total = 256 * MIB if full else 24 * MIB
    size = 4 * MIB
    # The magic of a record, and a length of 32 MiB that is valid text.
    pattern = "QJRC\x01\x01\x01\x02"
    times, hashed = {}, {}
    peaks = []
    for kind, filling in [("ordinary", "ordinary"), ("planted", pattern)]:
        with Cluster(binary) as cluster:
            sql = Sql(cluster.address("gateway", "sql"))
            sql.done("create table filled (key int primary key, value text)")
            for index in range(total // size):
                # Each rotation puts the heads at another place relative to the words of the file.
                text = (filling * (size // 8 + 1))[index % 8:][:size]
                sql.done(f"insert into filled values ({index % 6}, '{text}') on conflict (key) do update set "
                         "value = excluded.value")
            sql.close()
            peaks.append(cluster.judge(data=16 * size))
            runs = []
            for _ in range(3):
                cluster.quorate("down", "--yes")
                runs.append(cluster.up())
                sql = Sql(cluster.address("gateway", "sql"))
                found = sql.done("select count(*) from filled")
                require(found == [[b"6"]], f"rows after the restart: {found}")
                sql.close()
            times[kind] = min(runs)
            hashed[kind] = sum(cluster.hashed_bytes(process) for process in cluster.first.values())
    # A second of tolerance covers the time that any start takes. Other work of the machine does not change the
    # number of hashed bytes.
    require(times["planted"] <= 2 * times["ordinary"] + 1, f"seconds to restart: {times}")
    require(hashed["planted"] <= 2 * hashed["ordinary"], f"hashed bytes at a restart: {hashed}")
    return (f"{total // MIB} MiB; restart from ordinary bytes {times['ordinary']:.2f} s and "
            f"{hashed['ordinary'] // MIB} MiB hashed, from planted heads {times['planted']:.2f} s and "
            f"{hashed['planted'] // MIB} MiB; {peaks[1]}")


def doors(cluster):
    """Returns the name, the address and the first half of a greeting of each kind of door."""
    hello = b"GET /status HTTP/1.1\r\nHost: loc"
    return [
        ("sql", cluster.address("gateway", "sql"), b"\0\0\0"),
        ("redis", cluster.address("cell", "redis"), b"*2\r\n$3\r\nGE"),
        *((f"http of {role}", cluster.address(role, "http"), hello) for role in ROLES),
        *((f"links of {role}", cluster.address(role, "listen"), b"\0") for role in ROLES),
    ]


def serves(cluster, seconds=30):
    """Waits until every door serves a new client."""
    def works():
        try:
            sql = Sql(cluster.address("gateway", "sql"))
            sql.done("select 1")
            sql.close()
            redis = Redis(cluster.address("cell", "redis"))
            require(redis.ask("ping") == b"PONG", "PING")
            redis.close()
            return all(cluster.report(cluster.named(role)[0]) for role in ROLES)
        except (Failure, OSError, struct.error):
            return False
    return await_true(works, seconds, "a door serves no new client")


def half_open(binary, full):
    """Many connections to each door that say half a greeting and no more."""
    number = 10_000 if full else 400
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    require(hard >= number + 100, f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number + 100), hard))
    with Cluster(binary, "--cells", "3") as cluster:
        sql = Sql(cluster.address("gateway", "sql"))
        redis = Redis(cluster.address("cell", "redis"))
        sql.done("create table worked (number int primary key)")
        longest, said = 0, []
        for door, address, greeting in doors(cluster):
            held, refused = [], 0
            for index in range(number):
                client = socket.socket()
                client.settimeout(2)
                try:
                    client.connect(address)
                    client.sendall(greeting)
                    held.append(client)
                except OSError:
                    refused += 1
                    client.close()
                    # A full queue of the listener is no reason to wait for each further client.
                    if refused > 20:
                        break
            # Clients that connected earlier are served meanwhile.
            for index in range(20):
                sql.done("insert into worked values (1) on conflict (number) do nothing")
                redis.done("set", "worked", index)
            for client in held:
                client.close()
            longest = max(longest, serves(cluster))
            said.append(f"{door} {len(held)}")
        sql.close()
        redis.close()
        peaks = cluster.judge()
        return f"{', '.join(said)}; each door served new clients {longest:.1f} s later; {peaks}"


def slow_readers(binary, full):
    """A client at each door that asks for much and reads one byte a second."""
    seconds, clients = (60, 20) if full else (4, 4)
    with Cluster(binary, "--cells", "3") as cluster:
        sql = Sql(cluster.address("gateway", "sql"))
        redis = Redis(cluster.address("cell", "redis"))
        sql.done("create table large (key int primary key, value text)")
        for key in range(16):
            sql.done(f"insert into large values ({key}, '{'v' * (4 * MIB)}')")
        redis.done("set", "large", b"v" * (4 * MIB))
        slow = []
        for _ in range(clients):
            reader = Sql(cluster.address("gateway", "sql"))
            reader.send("select * from large")
            slow.append(reader.socket)
            reader = Redis(cluster.address("cell", "redis"))
            slow.append(reader.socket)
            ask(reader.socket, b"*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n" * 2000)
            for door, address, _ in doors(cluster)[2:]:
                reader = socket.create_connection(address, timeout=ANSWER_SECONDS)
                slow.append(reader)
                if door.startswith("http"):
                    ask(reader, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000)
        slowest, busy = 0, 0
        for second in range(seconds):
            for reader in slow:
                reader.settimeout(0)
                try:
                    reader.recv(1)
                except OSError:
                    pass
            began = time.monotonic()
            sql.done(f"update large set value = '{second}' where key = 0")
            said = redis.ask("set", "other", second)
            # A cell whose clients take up all its memory refuses further requests, and names the reason.
            refused = isinstance(said, Refusal) and said.startswith(LATE)
            busy += refused
            require(refused or said == b"OK", f"SET next to slow readers says {said}")
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(1)
        said = cluster.judge(data=16 * 4 * MIB)
        for reader in slow:
            reader.close()
        serves(cluster)
        sql.close()
        redis.close()
        return (f"{len(slow)} readers for {seconds} s; other clients waited {slowest * 1000:.0f} ms at most, and "
                f"{busy} of their requests were refused by name; {said}")


def ask(client, requests):
    """Sends requests until the other side takes no more."""
    client.settimeout(0.2)
    try:
        client.sendall(requests)
    except OSError:
        pass


CASES = {case.__name__.replace("_", "-"): case
         for case in (failures, answers, tombstones, heads, half_open, slow_readers)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", default="target/debug/quorate", help="the program `quorate`")
    parser.add_argument("--full", action="store_true", help="use the full sizes")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"cases to run, all by default: {', '.join(CASES)}")
    words = parser.parse_args()
    unknown = set(words.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    failed = 0
    for name in words.cases or CASES:
        began = time.monotonic()
        try:
            said = f"passed: {CASES[name](os.path.abspath(words.binary), words.full)}"
        except (Failure, OSError, struct.error) as error:
            failed += 1
            said = f"FAILED: {error or type(error).__name__}"
        print(f"{name} ({time.monotonic() - began:.0f} s) {said}", flush=True)
    raise SystemExit(min(failed, 1))


if __name__ == "__main__":
    main()

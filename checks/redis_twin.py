"""Sends the same bytes to the Redis door and to a real Redis 7, whose answers must be equal.

The check draws one-line requests with quotes and escapes, numbers, and combinations of options. A map of strategy
`service` answers, because it has all these commands. Then come cases in which a client goes on after a refusal."""

import random
import socket
import subprocess
import sys
import tempfile
import time

LINES = 3_000
COMMANDS = 6_000
# Longest life in Quorate, in milliseconds: a hundred years. Redis accepts longer lives.
YEARS = 100 * 365 * 24 * 3_600 * 1_000


class Line:
    """A connection that sends bytes unchanged."""

    def __init__(self, host, port, *begin):
        self.stream = socket.create_connection((host, port), timeout=20)
        self.file = self.stream.makefile("rb")
        for command in begin:
            told = self.ask(*command)
            assert told == b"+OK\r\n", (command, told)

    def send(self, data):
        self.stream.sendall(data)

    def answer(self):
        """Returns the bytes of the next answer. They are empty at the end of the connection."""
        head = self.file.readline()
        if head[:1] in (b"$", b"*"):
            count = int(head[1:])
            if head[:1] == b"$":
                return head + (self.file.read(count + 2) if count >= 0 else b"")
            return head + b"".join(self.answer() for _ in range(max(count, 0)))
        return head

    def ask(self, *words):
        self.send(request(*words))
        return self.answer()

    def rest(self):
        """Returns everything up to the end of the connection."""
        try:
            return self.file.read()
        except ConnectionResetError:
            return b""


def request(*words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def inline(chance, ours, twin):
    """Both give the same answer to each line, and both end the connection or keep it."""
    pieces = [b"a", b"b", b'"', b'"', b"'", b"'", b"\\", b"\\x", b"\\x41", b"\\xfg", b"\\n", b"\\'", b'\\"', b" ", b" ", b"\t", b"\v",
              b"\f", b"\xff", b"4", b'" "', b"''", b'"a b"', b"'a\\'b'"]
    for number in range(LINES):
        line = chance.choice([b"ECHO ", b"echo\t", b'"ECHO" ', b" ECHO ", b""]) + b"".join(chance.choices(pieces, k=chance.randrange(7)))
        line += chance.choice([b"\r\n", b"\n"])
        told = []
        for place in (ours, twin):
            connection = Line(*place)
            connection.send(line + b"PING\r\nQUIT\r\n")
            told.append(connection.rest())
        # The two refuse an unknown command in different words.
        if told[1].startswith(b"-ERR unknown command"):
            assert told[0].startswith(b"-ERR unknown"), (number, line, told)
            told = [answer.split(b"\r\n", 1)[1] for answer in told]
        assert told[0] == told[1], (number, line, told)


NUMBERS = ["0", "1", "-1", "5", "100", "-0", "+5", "05", "00", " 5", "5 ", "", "-", "x", "5x", "1.0", "1e3", "0x10", "100000", "-100000",
           "2147483648", "4294967296", "9223372036854775", "9223372036854776", "-9223372036854775", "-9223372036854776",
           "9223372036854775806", "9223372036854775807", "9223372036854775808", "-9223372036854775807", "-9223372036854775808",
           "-9223372036854775809", "18446744073709551615", "18446744073709551616", "99999999999999999999", "٣"]


WRONG_TYPE = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"


def draw(chance):
    key = chance.choice(["k1", "k2", "k3"])
    number = chance.choice(NUMBERS)
    only = chance.choices(["NX", "XX", "GT", "LT", "nx", "KEEPTTL", ""], k=chance.randrange(4))
    unit = lambda: chance.choice(["EX", "PX", "EXAT", "PXAT", "ex"])
    options = []
    for _ in range(chance.randrange(4)):
        options += chance.choice([["NX"], ["XX"], ["GET"], ["KEEPTTL"], ["PERSIST"], [unit(), chance.choice(NUMBERS)], [unit()], ["xx"]])
    return chance.choice([
        ["SET", key, number], ["SET", key, "v", *options], ["SET", key, "v", unit(), number], ["GETEX", key, *options],
        ["GETEX", key, unit(), number], ["SETEX", key, number, "v"], ["PSETEX", key, number, "v"], ["INCRBY", key, number],
        ["DECRBY", key, number], ["INCR", key], ["DECR", key], ["DEL", key], ["GET", key], ["APPEND", key, number],
        [chance.choice(["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"]), key, number, *only],
        [chance.choice(["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"]), key, number, *only],
        ["PERSIST", key], ["EXISTS", key, key], ["STRLEN", key], ["HINCRBY", "h", "f", number], ["HSET", "h", "f", number],
        ["HINCRBY", key, "f", number], ["SETNX", key, number], ["MGET", key, "k1", key], ["DEL", key, key],
    ])


def is_long(command):
    """Whether a number of the command exceeds the longest life in Quorate."""
    digits = [word for word in command[2:] if word.lstrip("-").isdigit() and word.isascii()]
    return any(abs(int(word)) * (1 if b"P" == command[0][:1].encode() else 1_000) > YEARS / 2 or abs(int(word)) > YEARS / 2 for word in digits)


def numbers(chance, ours, twin):
    here, there = Line(*ours, ("QUORATE", "MAP", "twin")), Line(*twin)
    for number in range(COMMANDS):
        command = draw(chance)
        told, wanted = here.ask(*command), there.ask(*command)
        if told != wanted and b"invalid expire time" in told and is_long(command):
            # Both must continue with the same keys.
            for key in ("k1", "k2", "k3"):
                here.ask("DEL", key)
                there.ask("DEL", key)
            continue
        if command[0] == "GETEX" and told[:4] == b"-ERR" and wanted in (b"$-1\r\n", WRONG_TYPE):
            # Redis checks the number last.
            continue
        assert told == wanted, (number, command, told, wanted)
        # A life near its end may end between the two questions.
        key = command[1]
        lives = [int(line.ask("PTTL", key)[1:]) for line in (here, there)]
        assert (lives[0] < 0) == (lives[1] < 0) and abs(lives[0] - lives[1]) < 2_000 or max(lives) < 3_000, (number, command, lives)
        if 0 <= max(lives) < 3_000:
            here.ask("DEL", key)
            there.ask("DEL", key)


def refused(ours, twin):
    """A client goes on after a refused MULTI, SELECT or greeting. Its next commands have no unintended effect."""
    for name in ("main", "twin"):
        line = Line(*ours, ("QUORATE", "MAP", name))
        line.ask("DEL", "counter")
        transaction = [["MULTI"], ["INCR", "counter"], ["SET", "counter", "7"], ["PING"], ["EXEC"]]
        line.send(b"".join(request(*command) for command in transaction))
        told = [line.answer() for _ in transaction]
        assert all(answer.startswith(b"-") for answer in told), told
        assert b"transaction=False" in told[0] and told[-1].startswith(b"-EXECABORT "), told
        assert line.ask("EXISTS", "counter") == b":0\r\n", name
        line.send(request("MULTI") + request("INCR", "counter") + request("DISCARD") + request("EXISTS", "counter"))
        told = [line.answer() for _ in range(4)]
        assert told[2:] == [b"+OK\r\n", b":0\r\n"], told
        assert line.ask("EXEC") == Line(*twin).ask("EXEC")
        assert line.ask("DISCARD") == Line(*twin).ask("DISCARD")
        # ioredis with `db: 1` sends this and ignores the answer.
        line.send(request("SELECT", "1") + request("SET", "counter", "1") + request("SCAN", "0") + request("SELECT", "0") + request("EXISTS", "counter"))
        told = [line.answer() for _ in range(5)]
        assert all(answer.startswith(b"-") for answer in told[:3]), told
        assert told[3:] == [b"+OK\r\n", b":0\r\n"], told
        assert line.ask("QUORATE", "MAP", "nowhere").startswith(b"-")
        assert line.ask("SET", "counter", "1").startswith(b"-NOMAP ")
        assert line.ask("QUORATE", "MAP", name) == b"+OK\r\n"
        assert line.ask("EXISTS", "counter") == b":0\r\n"
    # The server obeys a client that asks for silence, so that no later answer is taken for another one's.
    for place in (ours, twin):
        line = Line(*place)
        line.send(b"".join(request(*command) for command in [
            ["CLIENT", "REPLY", "OFF"], ["SET", "s", "1"], ["GET", "s"], ["CLIENT", "REPLY", "ON"], ["CLIENT", "REPLY", "SKIP"],
            ["GET", "s"], ["GET", "s"], ["HELLO", "3", "SETNAME"], ["GET", "none"]]))
        told = [line.answer() for _ in range(4)]
        assert told[:2] == [b"+OK\r\n", b"$1\r\n1\r\n"] and told[2].startswith(b"-") and told[3] == b"$-1\r\n", told
    # A refused greeting does not change the protocol.
    line = Line(*ours)
    line.send(request("HELLO", "3", "AUTH", "a", "b") + request("GET", "none"))
    assert line.answer().startswith(b"-") and line.answer() == b"$-1\r\n"
    for name in ("a b", "a\nb", "x" * 2_000):
        assert line.ask("CLIENT", "SETNAME", name).startswith(b"-"), name


def repeated(ours):
    """A client loses an answer and asks again under the same id."""
    line, other = (Line(*ours, ("QUORATE", "MAP", "twin")) for _ in range(2))
    line.ask("DEL", "n")
    for client in (line, other, line):
        assert client.ask("QUORATE", "ID", "r-1", "INCR", "n") == b":1\r\n"
    assert line.ask("QUORATE", "ID", "r-2", "INCR", "n") == b":2\r\n"
    assert b"another request" in line.ask("QUORATE", "ID", "r-2", "DECR", "n")
    assert line.ask("GET", "n") == b"$1\r\n2\r\n"
    assert b"writes keys" in line.ask("QUORATE", "ID", "r-3", "GET", "n")
    assert b"partial quorums" in Line(*ours).ask("QUORATE", "ID", "r-3", "INCR", "n")


def browsers(ours, twin):
    """The door ends an HTTP request at its first line, and obeys no line of its body."""
    for head in (b"POST / HTTP/1.1\r\nHost: x\r\n", b"GET / HTTP/1.1\r\n", b"PUT /a HTTP/1.1\r\n", b"Host: x\r\n", b"SET /http HTTP/1.1\r\n"):
        line = Line(*ours)
        line.send(head + b"\r\nSET http 1\r\nPING\r\n")
        told = line.rest()
        assert b"PONG" not in told and b"OK" not in told, (head, told)
    line = Line(*ours)
    assert line.ask("EXISTS", "http", "/http") == b":0\r\n"


def large(ours):
    """Sends short requests that have huge answers."""
    line = Line(*ours)
    value = b"v" * (4 << 20)
    assert line.ask("SET", "large", value) == b"+OK\r\n"
    for count in (2, 5):
        assert line.ask("MGET", *["large"] * count).count(b"$%d\r\n" % len(value)) == count
    assert line.ask("MGET", *["large"] * 65_535).startswith(b"-TOOLARGE ")
    # A pipeline gets all its answers, though the server holds few of them at a time. On a slow machine a read
    # may be late.
    line.send(request("GET", "large") * 256 + request("ECHO", "end"))
    for number in range(256):
        told = line.answer()
        assert told == b"$%d\r\n%s\r\n" % (len(value), value) or told.startswith((b"-BUSY ", b"-UNANSWERED ")), (number, told[:80])
    assert line.answer() == b"$3\r\nend\r\n"
    for number in range(24):
        line.ask("SET", f"large{number}", value)
    assert line.ask("MGET", *[f"large{number}" for number in range(24)]).startswith(b"-TOOLARGE ")
    for command in ("EXISTS", "DEL"):
        told = b"-BUSY "
        began = time.monotonic()
        # Earlier operations may hold the room for a moment longer. BUSY says that nothing was done.
        while told.startswith(b"-BUSY ") and time.monotonic() - began < 10:
            told = line.ask(command, *[f"large{number}" for number in range(24)])
        assert told == b":24\r\n", (command, told)
    for first in (0, 3):
        fields = [word for number in range(first, first + 3) for word in (f"f{number}", b"v" * (1 << 20))]
        assert line.ask("HSET", "hash", *fields) == b":3\r\n"
    assert line.ask("HMGET", "hash", *["f1"] * 1_000).startswith(b"-TOOLARGE ")
    line.ask("DEL", "large", "hash")


def main(host, port):
    ours = (host, int(port))
    with tempfile.TemporaryDirectory() as place:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            twin = ("127.0.0.1", free.getsockname()[1])
        server = subprocess.Popen(
            ["redis-server", "--port", str(twin[1]), "--save", "", "--dir", place], stdout=subprocess.DEVNULL)
        try:
            began = time.monotonic()
            while True:
                try:
                    Line(*twin)
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() - began < 20, "redis-server does not start"
                    time.sleep(0.05)
            Line(*ours, ("QUORATE", "CREATE", "twin", "STRATEGY", "service"))
            chance = random.Random(39)
            inline(chance, ours, twin)
            numbers(chance, ours, twin)
            refused(ours, twin)
            repeated(ours)
            browsers(ours, twin)
            large(ours)
        finally:
            server.terminate()
            server.wait()
    print(f"{LINES} lines and {COMMANDS} commands, answers as those of Redis")


if __name__ == "__main__":
    main(*sys.argv[1:])

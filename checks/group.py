"""Tests process groups whose members have a network namespace each.

`checks/group` runs this in a hub namespace. Veth pairs join all other namespaces to the hub, and the hub forwards
between them. So every message passes here: a rule drops the messages of a process that is cut off, and a
listener reads them. The three routers share a namespace. Each member is `examples/ledger`, which takes commands
on its standard input.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

# Seconds within which a member refuses sends and reads after it lost all routers. The docs promise two
# seconds.
WEDGED_SECONDS = 2.0
PATIENCE_SECONDS = 20
LOAD_SECONDS = 3


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(words)}: {done.stdout.strip()}")


def check(holds, what):
    if not holds:
        sys.exit(f"failed: {what}")


def await_true(is_true, what, seconds=PATIENCE_SECONDS):
    until = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > until:
            sys.exit(f"failed: {what() if callable(what) else what}: not in {seconds} s")
        time.sleep(0.005)


class Place:
    """A namespace with its own address, and a route through the hub."""

    def __init__(self, prefix, name, number):
        self.namespace, self.address, hub = f"{prefix}-{name}", f"10.78.{number}.2", f"10.78.{number}.1"
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", f"hub{number}", "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        run("ip", "address", "add", f"{hub}/30", "dev", f"hub{number}")
        run("ip", "link", "set", f"hub{number}", "up")
        for words in (["address", "add", f"{self.address}/30", "dev", "eth0"], ["link", "set", "lo", "up"],
                      ["link", "set", "eth0", "up"], ["route", "add", "default", "via", hub]):
            run("ip", "-n", self.namespace, *words)

    def start(self, *words, **pipes):
        # `ip netns exec` replaces itself by the program.
        return subprocess.Popen(["ip", "netns", "exec", self.namespace, *words], **pipes)

    def cut(self, action):
        for direction in ("from", "to"):
            run("ip", "rule", action, "priority", "100", direction, self.address, "blackhole")


class Member:
    """A member, and the lines that it has printed."""

    def __init__(self, binary, place, routers, *options, joins=True):
        words = [binary, "--routers", routers, "--listen", f"{place.address}:0", *options]
        self.child = place.start(
            *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        # Lines before `read` have been skipped. Of the later lines, `answers` holds the answers to `does`.
        self.lines, self.read, self.answers = [], 0, set()
        self.reader = threading.Thread(target=self.listen, daemon=True)
        self.reader.start()
        if joins:
            self.says("joined ")

    def listen(self):
        for line in self.child.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def tell(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def find(self, is_wanted, wanted, seconds):
        """Returns the number of the next wanted line."""
        found, next = [], self.read

        def look():
            nonlocal next
            while next < len(self.lines) and not found:
                if next not in self.answers and is_wanted(self.lines[next][1]):
                    found.append(next)
                next += 1
            return found or self.child.poll() is not None and not self.reader.is_alive() and next == len(self.lines)

        await_true(look, lambda: f"it says no {wanted!r}, but {self.lines[-5:]}", seconds)
        if not found:
            sys.exit(f"failed: it ended, and said no {wanted!r}, but {self.lines[-5:]}: {self.child.stderr.read()}")
        return found[0]

    def says(self, beginning, seconds=PATIENCE_SECONDS):
        """Returns the time and the rest of the next line with this beginning. Skips the lines before it."""
        found = self.find(lambda line: line.startswith(beginning), beginning, seconds)
        self.read = found + 1
        at, line = self.lines[found]
        return at, line[len(beginning):]

    def does(self, line, seconds=PATIENCE_SECONDS):
        """Runs a command that must succeed. The lines printed meanwhile stay readable."""
        self.tell(line)
        found = self.find(lambda said: said == f"done {line}" or said.startswith(f"refused {line}:"), f"done {line}", seconds)
        self.answers.add(found)
        at, answer = self.lines[found]
        check(answer == f"done {line}", answer)
        return at

    def asks(self, line, beginning):
        """Runs a command, and returns the rest of its answer."""
        self.tell(line)
        return self.says(beginning)[1]

    def count(self):
        return int(self.asks("count", "count ").split(",")[0])

    def entries(self):
        self.does("list")
        last = max(i for i, (_, line) in enumerate(self.lines) if line == "done list")
        entries = []
        for _, line in reversed(self.lines[:last]):
            if not line.startswith("entry "):
                break
            entries.insert(0, json.loads(line[len("entry "):]))
        return entries

    def leave(self):
        self.child.stdin.close()
        check(self.child.wait(PATIENCE_SECONDS) == 0, "it leaves in order")

    def is_refused(self):
        """Returns the reason why the member could not join."""
        check(self.child.wait(PATIENCE_SECONDS) == 1, "it is refused")
        return self.child.stderr.read().strip()

    def kill(self):
        os.kill(self.child.pid, signal.SIGKILL)
        self.child.wait()


class Wire(threading.Thread):
    """Reads everything that passes the hub namespace."""

    def __init__(self):
        super().__init__(daemon=True)
        try:
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        except OSError as error:
            print(f"skipped: this machine does not let the wire be listened to: {error}")
            sys.exit(78)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.bytes, self.seen, self.wanted = 0, {}, []
        self.lock = threading.Lock()
        self.start()

    def run(self):
        while True:
            packet = self.socket.recv(1 << 17)
            with self.lock:
                self.bytes += len(packet)
                for text in self.wanted:
                    if text in packet:
                        self.seen[text] = self.seen.get(text, 0) + 1

    def look_for(self, *texts):
        with self.lock:
            self.wanted += [text.encode() for text in texts]

    def count(self, text):
        with self.lock:
            return self.seen.get(text.encode(), 0)


class Check:
    def __init__(self, prefix, quorate, ledger):
        self.quorate, self.ledger = os.path.abspath(quorate), os.path.abspath(ledger)
        self.directory = tempfile.TemporaryDirectory()
        self.domain = os.urandom(16).hex()
        with open("/proc/sys/net/ipv4/ip_forward", "w") as file:
            file.write("1")
        run("ip", "link", "set", "lo", "up")
        self.places = [Place(prefix, name, number) for number, name in enumerate(("routers", "ann", "bob", "cy"), 1)]
        self.routers = ",".join(f"{self.places[0].address}:{port}" for port in (24701, 24702, 24703))
        self.children, self.members = [], []
        for node in (1, 2, 3):
            self.start_router(node)

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def start_router(self, node):
        address = self.places[0].address
        settings = {
            "domain": self.domain, "node": node, "name": f"router-{node}", "role": "router",
            "listen": f"{address}:{24700 + node}", "http_listen": f"{address}:{24710 + node}", "found": node == 1,
            "routers": [router for router in self.routers.split(",") if not router.endswith(str(node))],
            "insecure": True, "supervised": True,
        }
        with open(self.path(f"router-{node}.toml"), "w") as file:
            file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        log = open(self.path(f"router-{node}.log"), "w")
        words = [self.quorate, "node", "--config", self.path(f"router-{node}.toml")]
        self.children.append(self.places[0].start(*words, stdin=subprocess.PIPE, stdout=log, stderr=log))
        log.close()

    def member(self, number, *options, **more):
        member = Member(self.ledger, self.places[number], self.routers, *options, **more)
        self.members.append(member)
        return member

    def key(self, name):
        with open(self.path(name), "w") as file:
            file.write(os.urandom(32).hex())
        return self.path(name)

    def stop(self):
        for child in self.children + [member.child for member in self.members]:
            if child.poll() is None:
                child.kill()
                child.wait()

    def cut_off(self):
        """A member is cut off. It refuses requests, the group drops it, and it returns without its unshared changes."""
        ann, bob, cy = (self.member(number, "--group", "cut") for number in (1, 2, 3))
        ann.does("safe before")
        cy.does("soft from cy")
        cy.does("flush")
        began = time.monotonic()
        self.places[3].cut("add")
        cy.does("soft alone")
        at, _ = cy.says("out of touch")
        wedged = at - began
        check(wedged <= WEDGED_SECONDS, f"a member that is cut off stops after {wedged:.2f} s")
        for verb in ("soft", "ordered", "safe", "flush"):
            cy.tell(f"{verb} into the dark")
            why = cy.says(f"refused {verb} into the dark: ")[1]
            check("out of touch" in why, why)
        check(cy.asks("count", "refused count: ").startswith("out of touch"), "nothing old is shown for current")
        # The others go on as soon as the member is dropped.
        ann.does("safe behind")
        bob.does("soft behind, too")
        dropped = time.monotonic() - began
        self.places[3].cut("delete")
        cy.says("out this process was cut off")
        joined = cy.says("joined ")[1]
        back = time.monotonic() - began - dropped
        check(joined == "4", f"it comes back with {joined} entries")
        cy.does("safe again")
        wanted = ["before", "from cy", "behind", "behind, too", "again"]
        for member in (ann, bob, cy):
            await_true(lambda: sorted(member.entries()) == sorted(wanted), lambda: f"entries are {member.entries()}")
        refused = cy.asks("count", "count 5, ")
        check(refused == "3 refused", f"{refused}, of three sends")
        for member in (ann, bob, cy):
            member.leave()
        return f"cut off: stopped after {wedged:.2f} s, others went on after {dropped:.2f} s, back {back:.2f} s after the cut healed"

    def strangers(self):
        """The group refuses strangers, names both values, and goes on."""
        group, key, other = ("--group", "strangers"), self.key("right"), self.key("wrong")
        ann = self.member(1, *group, "--key", key, "--file", self.path("ann.ledger"))
        bob = self.member(2, *group, "--key", key, "--file", self.path("bob.ledger"))
        ann.does("safe one")
        why = self.member(3, *group, "--key", key, "--version", "2", joins=False).is_refused()
        check('updates are "STR"' in why and '"STR","U64"' in why, f"another signature: {why}")
        why = self.member(3, *group, "--key", other, joins=False).is_refused()
        ids = set(re.findall(r"\b[0-9a-f]{16}\b", why))
        check("the key of the group" in why and len(ids) == 2, f"another key: {why}")
        why = self.member(3, *group, joins=False).is_refused()
        check("the key of the group" in why, f"no key: {why}")
        # Both members leave. The checkpoint of the last one is the newest.
        ann.leave()
        bob.does("safe two")
        bob.leave()
        options = (*group, "--key", key, "--file", self.path("ann.ledger"))
        why = self.member(1, *options, joins=False).is_refused()
        marks = re.findall(r"view \d+ of life \d+", why)
        check(len(set(marks)) == 2, f"a stale checkpoint: {why}")
        bob = self.member(2, *group, "--file", self.path("bob.ledger"))
        check(bob.entries() == ["one", "two"], f"entries are {bob.entries()}")
        bob.leave()
        return "strangers: another signature, another key, none, and a stale checkpoint are refused with both values"

    def wire(self):
        """A key rotates under load. The listener can read nothing of a group with a key."""
        wire, keys = Wire(), [self.key(f"key-{number}") for number in range(3)]
        open_text, sealed_text = "PLAINLY-TO-BE-READ", "NOBODY-MAY-READ-THIS"
        wire.look_for(open_text, sealed_text)
        # A group without a key proves that the listener hears: it sends at each strength.
        plain = [self.member(number, "--group", "open") for number in (1, 2)]
        for verb in ("soft", "ordered", "safe"):
            before = wire.count(open_text)
            plain[0].does(f"{verb} {open_text}")
            await_true(lambda: wire.count(open_text) > before, f"{verb} sends of a group without a key are seen")
        for member in plain:
            member.leave()
        ann, bob = (self.member(number, "--group", "sealed", "--key", keys[0]) for number in (1, 2))
        for verb in ("soft", "ordered", "safe"):
            ann.does(f"{verb} {sealed_text}")
        # A joining member gets the state.
        cy = self.member(3, "--group", "sealed", "--key", keys[0])
        members = (ann, bob, cy)
        check(cy.asks(f"ask {sealed_text}", "asked ") == "3, 3 entries", "all reply")
        cy.does(f"lock {sealed_text}")
        cy.says(f"locked {sealed_text} ")
        for name, member in zip("abc", members):
            member.tell(f"load {sealed_text}-{name} {LOAD_SECONDS}")
        for key in keys[1:]:
            time.sleep(LOAD_SECONDS / 4)
            bob.does(f"rotate {key}")
        total = 3
        for member in members:
            entered, refused = re.fullmatch(r"(\d+), (\d+) refused", member.says("loaded ")[1]).groups()
            why = [line for _, line in member.lines if line.startswith("refused")]
            check(refused == "0" and int(entered) > 0, f"{entered} entered and {refused} refused while the key was turned: {why}")
            total += int(entered)
        for member in members:
            await_true(lambda: member.count() == total, lambda: f"{member.count()} entries of {total}")
        # The group refuses a former key and accepts the newest.
        why = self.member(1, "--group", "sealed", "--key", keys[0], joins=False).is_refused()
        check("the key of the group" in why, f"a former key: {why}")
        late = self.member(1, "--group", "sealed", "--key", keys[2])
        check(late.count() == total, f"{late.count()} entries of {total}")
        seen, heard = wire.count(sealed_text), wire.bytes
        check(seen == 0, f"{seen} packets of a group with a key are to be read")
        for member in (*members, late):
            member.leave()
        return f"keys: {total} entries while two keys followed the first, none lost; none of them to be read in {heard >> 20} MiB on the wire"

    def locks(self):
        """The holder of a lock is killed. The next member gets the lock with a larger number."""
        ann, bob = (self.member(number, "--group", "locks") for number in (1, 2))
        ann.does("lock settlement")
        first = int(ann.says("locked settlement ")[1])
        bob.does("lock settlement")
        ann.kill()
        began = time.monotonic()
        at, fence = bob.says("locked settlement ")
        check(int(fence) > first, f"{fence} behind {first}")
        bob.leave()
        return f"locks: the next holder has number {fence} behind {first}, {at - began:.2f} s after the first was killed"

    def run(self):
        for part in (self.locks, self.cut_off, self.strangers, self.wire):
            began = time.monotonic()
            print(f"{part()} ({time.monotonic() - began:.1f} s)", flush=True)


def main():
    prefix, quorate, ledger = sys.argv[1:]
    whole = Check(prefix, quorate, ledger)
    try:
        whole.run()
    finally:
        whole.stop()


main()

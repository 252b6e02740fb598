"""Runs the code blocks of documents, and compares what they print with what the documents show.

    docs.py DIRECTORY [DOCUMENT…]

DIRECTORY has the programs, `quorate` and `quorate-instruments`. Without a DOCUMENT the check takes all
documents of the book (docs/SUMMARY.md), one after another. It runs those in DOCUMENTS. In the others each
block must say why it does not run, unless a test runs it or compares it with the code. Each document has a
fresh directory. Its blocks run in their order, and share one session of psql and one of redis-cli.

A block runs by its language and its prompts:

- `$ ` begins a command for bash; `quorate=# ` begins a statement for psql, and `127.0.0.1:24700> ` a command
  for redis-cli. The lines below are what it prints. If there are none, a command must succeed, and a
  statement must not print an error.
- `sql` holds statements, and `sh` commands, without prompts and without what they print.
- `toml` configures a process: `quorate node` starts with it, and says where it listens. A block without a
  `domain` changes keys of the block before it.
- `python` is a program, which runs to its end. It must not fail.
- `rust` must be a doctest, or stand in a doctest of docs/library.md. `no_run` says that it is only compiled.

Commands in the text (`quorate …` in backticks) do not run. The check asks `--help` whether there are such a
command and such flags.

Comments right before a fence, which no reader of the document sees, say more:

- `<!-- not run: reason -->`: the block does not run. A block that cannot run must have this comment.
- `<!-- run first: … -->`: the lines, written as in a block, run before the block. There, `$host_7101` is
  the process id of the host of a service that listens at the document's port 7101.
- `<!-- either: 7102 8102, 7103 8103 -->`: chance decides which of two processes has which part. Each time
  that the check asks again, it exchanges their ports.

What the documents print may differ from what the check sees in this:

- *Ports, ids*, numbers of cells, and storage processes that have some range. Such a name of the document
  stands for the name that was seen in its place first, and for no other from then on.
- *The states of a process* that prints each change: it may miss a state that has passed at once.
- *The order of addresses* in a list of them.
- *Sizes* in bytes.
- *Spaces*, the rule below a table's head, and empty lines.
- *psql*: the number of rows below a table, the line that shows where an error is, and the lines of a verbose
  error that name its schema, table and constraint.
- *Logs* of a process, which it writes to standard error.
"""

import glob
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time

DOCUMENTS = ["README.md", "docs/start.md", "docs/sql.md", "docs/maps.md", "docs/services.md", "docs/operating.md"]
# Tests that run the blocks of other documents, or compare them with the code.
TESTED = [
    (re.compile(r"docs/(tour/.*|extending)\.md"), "rust", "compared with the code by crates/tidy/tests/tidy.rs"),
    (re.compile(r"docs/consistency\.md"), "drawing", "judged by crates/history/tests/cases.rs"),
]
PATIENCE = 60  # seconds that a command, or a line that it prints, may take

PROMPT = re.compile(r"(\$|quorate=[*!]?#|127\.0\.0\.1:\d+>) (.*)")
# These commands run until they are ended. The check goes on with the next command meanwhile.
LASTING = re.compile(r"quorate (up\b(?!.*--detach)|service (host|restore)\b)")
# These commands show a state that processes reach by themselves, so the check asks again for a while.
SHOWING = re.compile(r"quorate (service list|status)\b")
# A port, an id, the number that a cell got by its turn, or a storage process that has some range.
NAME = re.compile(r"(?<=127\.0\.0\.1:)\d+|\bcell \d+|\bstorage-\d+|\b[0-9a-f]{16}\b|\b[0-9a-f]{32}\b")
# Lines that psql prints and documents leave out.
UNSHOWN = re.compile(
    r"\(\d+ rows?\)|LINE \d+:.*|\^|(SCHEMA|TABLE|COLUMN|CONSTRAINT) NAME:.*|LOCATION:.*"
    r"|Enter data to be copied.*|End with a backslash.*"
)


class Failed(Exception):
    """A block did not do what its document says."""


# A document's blocks, and the steps of a block.


class Block:
    """A code block: the line at which it begins, its language, its lines, and the comments before it."""

    def __init__(self, line, language, lines, comments):
        self.line, self.language, self.lines, self.comments = line, language, lines, comments

    def comment(self, kind):
        for comment in self.comments:
            if comment.startswith(kind + ":"):
                return comment.removeprefix(kind + ":").strip()
        return None


class Step:
    """Something to run: its prompt, its text, and the lines that the document shows below it."""

    def __init__(self, line, prompt, text):
        self.line, self.prompt, self.text, self.shown = line, prompt, text, []


def blocks(text):
    """Returns the blocks of a document."""
    found, lines, comments, at = [], text.split("\n"), [], 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("<!--"):
            comment = [line]
            while "-->" not in lines[at]:
                at += 1
                comment.append(lines[at])
            comments.append("\n".join(comment).removeprefix("<!--").removesuffix("-->").strip())
        elif line.startswith("```"):
            begin = at + 1
            at = lines.index("```", begin)
            found.append(Block(begin, line.removeprefix("```"), lines[begin:at], comments))
            comments = []
        else:
            if line:
                comments = []
            if re.match(r" *(```|~~~)", line):
                raise Failed(f"line {at + 1}: a fence must begin its line, with three backticks")
        at += 1
    return found


def steps(lines, prompt, line):
    """Returns the steps of a block. Each line of a block without prompts gets this `prompt`."""
    found, at = [], 0
    while at < len(lines):
        match = PROMPT.fullmatch(lines[at] if prompt is None else f"{prompt} {lines[at]}")
        if match is None:
            if not found:
                raise Failed("it begins with no prompt, so it cannot run: mark it `<!-- not run: reason -->`")
            found[-1].shown.append(lines[at])
            at += 1
            continue
        step = Step(line + at + 1, match[1], match[2])
        at += 1
        while goes_on(step) and at < len(lines):
            step.text += "\n" + lines[at]
            at += 1
        found.append(step)
    return found


def goes_on(step):
    """Whether the next line belongs to the step, too."""
    if step.prompt == "$":
        return step.text.endswith("\\")
    if step.prompt.endswith(">"):
        return False
    if re.match(r"copy\b.*\bfrom stdin\b", step.text):
        return not step.text.endswith("\n\\.")
    return not step.text.endswith(";") and not step.text.startswith(("\\", "--"))


# What runs.


class Terminal:
    """A program at a terminal of its own, which shows a prompt when it has answered."""

    def __init__(self, words, prompt, environment):
        self.prompt = re.compile(rf"({prompt}) $")
        self.end, other = pty.openpty()
        mode = termios.tcgetattr(other)
        mode[1] &= ~termios.OPOST
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(other, termios.TCSANOW, mode)
        self.process = subprocess.Popen(
            words, stdin=other, stdout=other, stderr=other, env=environment, start_new_session=True
        )
        os.close(other)
        self.shows, _ = self.read()

    def read(self):
        """Returns the next prompt, and what was printed before it."""
        data, said, deadline = b"", "", time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if select.select([self.end], [], [], 0.1)[0]:
                try:
                    data += os.read(self.end, 1 << 16)
                except OSError:
                    raise Failed(f"the session ended: {said}") from None
                said = data.decode(errors="replace")
                match = self.prompt.search(said)
                if match:
                    return match[1], said[: match.start()]
        raise Failed(f"the session shows no prompt for {PATIENCE} s after: {said}")

    def ask(self, text):
        os.write(self.end, f"{text}\n".encode())
        self.shows, said = self.read()
        return said.split("\n")

    def stop(self):
        self.process.kill()
        self.process.wait()
        os.close(self.end)


class Lasting:
    """A process that goes on while later commands run, and what it prints."""

    def __init__(self, command, place, environment):
        self.path = tempfile.mktemp(prefix="out-", dir=place)
        self.command = command
        with open(self.path, "wb") as out, open(self.path + ".log", "wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=place, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=log,
            )

    def said(self):
        with open(self.path, encoding="utf-8") as out:
            return out.read()

    def wait(self, what, done):
        """Waits until `done` of the output is true, and returns what it is."""
        deadline = time.monotonic() + PATIENCE
        while True:
            ended = self.process.poll() is not None
            found = done(self.said())
            if found:
                return found
            if ended or time.monotonic() > deadline:
                with open(self.path + ".log", encoding="utf-8", errors="replace") as log:
                    raise Failed(f"`{self.command}` {what}. It printed:\n{self.said()}{log.read()[-2000:]}")
            time.sleep(0.05)

    def stop(self, patience=10):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


class Names:
    """The ports and ids of this run, by those that stand for them in the document."""

    def __init__(self):
        self.real = {}

    def put(self, text):
        """Returns a document's text with the names of this run."""
        return re.sub(r"\b\w+\b", lambda word: self.real.get(word[0], word[0]), text)

    def range(self, documented, real, count):
        """The ports of the document from `documented` on are those from `real` on in this run."""
        for number in range(count):
            self.real[str(documented + number)] = str(real + number)

    def exchange(self, one, other):
        for mine, yours in zip(one.split(), other.split(), strict=True):
            self.real[mine], self.real[yours] = self.real[yours], self.real[mine]

    def same(self, shown, said):
        """Whether this is what the document shows. Then new names of the document have their meaning."""
        shown, said, learned = tidy(shown), tidy(said), {}
        back = {real: name for name, real in self.real.items()}
        shown = [ordered(line, lambda port: (port not in self.real, port)) for line in shown]
        said = [ordered(line, lambda port: (port not in back, back.get(port))) for line in said]
        if len(shown) != len(said):
            return False
        for mine, yours in zip(shown, said):
            pattern, new, at = "", [], 0
            for name in NAME.finditer(mine):
                known = self.real.get(name[0], learned.get(name[0]))
                pattern += re.escape(mine[at : name.start()])
                pattern += re.escape(known) if known else f"({NAME.pattern})"
                new += [] if known else [name[0]]
                at = name.end()
            match = re.fullmatch(pattern + re.escape(mine[at:]), yours)
            if match is None:
                return False
            for name, real in zip(new, match.groups()):
                if real in back or real in learned.values() and learned.get(name) != real:
                    return False
                learned[name] = real
        self.real |= learned
        return True

    def states(self, shown, said):
        """Whether a process has printed the states that the document shows. It may miss all but the last."""
        position, shown = 0, tidy(shown)
        for line in tidy(said.split("\n")):
            while position < len(shown) and not self.same([shown[position]], [line]):
                position += 1
        return position == len(shown) - 1

    def difference(self, shown, said):
        """Says both for people, in the names of the document."""
        back = {real: name for name, real in self.real.items()}
        said = [re.sub(r"\b\w+\b", lambda word: back.get(word[0], word[0]), line) for line in said]
        parts = ["the document shows:", *tidy(shown)], ["it printed:", *tidy(said)]
        return "\n".join("\n  ".join(part) for part in parts)


def tidy(lines):
    """Returns the lines without what may differ in any output."""
    lines = [" ".join(line.split()) for line in lines]
    lines = [re.sub(r"-{2,}", "--", re.sub(r"\d+ bytes", "n bytes", line)) for line in lines]
    return [line for line in lines if line and not UNSHOWN.fullmatch(line)]


def ordered(line, key):
    """Returns a line in which the addresses of each list are in order."""
    address = r"127\.0\.0\.1:(\d+)"
    return re.sub(rf"{address}(, {address})+", lambda each: ", ".join(
        f"127.0.0.1:{port}" for port in sorted(re.findall(address, each[0]), key=key)), line)


def is_not_run(block):
    """Says whether a comment tells that the block does not run."""
    reason = block.comment("not run")
    if reason == "":
        raise Failed("`not run` needs a reason")
    return reason is not None


def doctest(name, block):
    """Says who runs a block of Rust."""
    with open("crates/quorate/src/lib.rs", encoding="utf-8") as file:
        if f'#[doc = include_str!("../../../{name}")]' in file.read():
            return "compiled as a doctest" if "no_run" in block.language else "run as a doctest"
    with open("docs/library.md", encoding="utf-8") as file:
        text = "\n".join(block.lines) + "\n"
        doctests = [each.lines for each in blocks(file.read()) if each.language == "rust"]
        if any(text in "\n".join(lines) + "\n" for lines in doctests):
            return "run as a doctest of docs/library.md"
    raise Failed("it is no doctest, so nobody runs it: mark it `<!-- not run: reason -->`")


def tested(name, block):
    """Says who runs a block of a document that this check does not run."""
    if is_not_run(block):
        return "not run"
    for page, language, how in TESTED:
        if page.fullmatch(name) and block.language == language:
            return how
    if block.language.startswith("rust"):
        return doctest(name, block)
    raise Failed("nobody runs it: mark it `<!-- not run: reason -->`")


def other_documents():
    """Returns the documents of the book that this check does not run."""
    with open("docs/SUMMARY.md", encoding="utf-8") as file:
        linked = re.findall(r"\]\(([^)]+)\)", file.read())
    names = [os.path.normpath(f"docs/{each}") for each in linked]
    return [name for name in names if name not in DOCUMENTS]


def free_ports(count):
    """Returns the first of consecutive free ports. Systems take no ports below 32000 for clients."""
    for _ in range(100):
        first = random.randrange(10000, 32000 - count)
        try:
            for port in range(first, first + count):
                with socket.create_server(("127.0.0.1", port)):
                    pass
        except OSError:
            continue
        return first
    raise Failed("no ports are free")


class Document:
    """A document under way: its directory, its sessions, its processes."""

    def __init__(self, name, programs):
        self.name = name
        self.place = tempfile.mkdtemp(prefix="quorate-docs-")
        self.environment = dict(
            os.environ, PATH=f"{programs}:{os.environ['PATH']}", LC_ALL="C.UTF-8", TERM="dumb", PAGER="cat",
            QUORATE_DATA_DIR=f"{self.place}/data", QUORATE_UP_PORT="0",
            PSQL_HISTORY="/dev/null", REDISCLI_HISTFILE="/dev/null", CURL_HOME=self.place, TMPDIR=self.place,
        )
        # Without these settings curl ends well if the answer is an error, and may ask a proxy.
        with open(f"{self.place}/.curlrc", "w", encoding="utf-8") as file:
            file.write('fail-with-body\nsilent\nshow-error\nnoproxy = "*"\n')
        self.programs = programs
        self.names = Names()
        # The ports of hosts of services. A cluster chooses its own.
        hosts = free_ports(60)
        for number, documented in enumerate([7100, 8080, 8100]):
            self.names.range(documented, hosts + 20 * number, 20)
        self.psql = self.redis = None
        self.lasting = []
        self.hosts = {}
        self.configuration = ""
        self.counts = {}

    def run(self):
        with open(self.name, encoding="utf-8") as file:
            text = file.read()
        for block in blocks(text):
            try:
                outcome = self.run_block(block)
            except Failed as failed:
                raise Failed(f"{self.name}, block at line {block.line}: {failed}") from None
            self.counts[outcome] = self.counts.get(outcome, 0) + 1
            print(f"{self.name}:{block.line}: {outcome}", flush=True)
        self.mentions(text)

    def mentions(self, text):
        """Asks `--help` whether the commands exist that the text mentions, with their flags."""
        text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        mentioned = {" ".join(command.split()) for command in re.findall(r"`quorate ([a-z][^`]*)`", text)}
        for command in sorted(mentioned):
            words = re.match(r"[a-z][a-z ]*(?![\w:.-])", command)[0]
            status, said = self.bash(f"quorate {words} --help")
            missing = [flag for flag in re.findall(r"--[a-z-]+", command) if flag not in said]
            if status != 0 or missing:
                why = ", ".join(missing) or said.strip()
                raise Failed(f"{self.name}: there is no `quorate {command}` ({why})")
        self.counts["commands in the text exist"] = len(mentioned)

    def examine(self):
        """Counts who runs the blocks. Fails if nobody runs a block and it gives no reason."""
        with open(self.name, encoding="utf-8") as file:
            text = file.read()
        for block in blocks(text):
            try:
                outcome = tested(self.name, block)
            except Failed as failed:
                raise Failed(f"{self.name}, block at line {block.line}: {failed}") from None
            self.counts[outcome] = self.counts.get(outcome, 0) + 1
        # The changelog names commands of earlier versions, too.
        if self.name != "CHANGELOG.md":
            self.mentions(text)

    def run_block(self, block):
        if is_not_run(block):
            return "not run"
        if block.language.startswith("rust"):
            return doctest(self.name, block)
        first = block.comment("run first")
        if first:
            self.run_steps(steps(first.split("\n"), None, block.line), None)
        if block.language == "toml":
            return self.node(block)
        if block.language == "python":
            return self.python(block)
        prompt = {"sql": "quorate=#", "sh": "$"}.get(block.language)
        if prompt is None and block.language not in ("", "text", "console"):
            raise Failed(f"`{block.language}` cannot run: mark it `<!-- not run: reason -->`")
        self.run_steps(steps(block.lines, prompt, block.line), block.comment("either"))
        return "run"

    def run_steps(self, found, either):
        open_ends = []
        for step in found:
            try:
                if step.prompt == "$":
                    self.command(step, either, open_ends)
                elif step.prompt.endswith(">"):
                    self.redis_command(step)
                else:
                    self.statement(step)
            except Failed as failed:
                raise Failed(f"line {step.line}: {step.text}\n{failed}") from None
        for process, shown in open_ends:
            process.wait(f"does not print {shown}", lambda said: self.names.states(shown, said))

    # Commands.

    def command(self, step, either, open_ends):
        text = step.text.replace("cargo run --release -- ", "quorate ")
        text = re.sub(r"\\\n\s*", "", text)
        text = re.sub(r"\s+# .*", "", text)
        if not text or text.startswith("#"):
            return
        if text.startswith("psql ") and not re.search(r" -[cfl]\b", text):
            text += " -X -n -v PROMPT2= -v PROMPT3="
            self.psql = self.opened(self.psql, text, r"quorate=[*!]?#")
        elif re.fullmatch(r"redis-cli( -[hp] \S+)*", text):
            self.redis = self.opened(self.redis, text, r"127\.0\.0\.1:\d+>")
        elif re.match(r"quorate up\b", text):
            said = self.up(text)
            # The document shows the beginning, and may break its lines elsewhere.
            if not " ".join(said.split()).startswith(self.names.put(" ".join(" ".join(step.shown).split()))):
                raise Failed(self.names.difference(step.shown, said.split("\n")))
        elif LASTING.match(text):
            process = self.host(text)
            if step.shown:
                open_ends.append((process, step.shown))
        else:
            self.end_of(text, step, either)

    def end_of(self, text, step, either):
        """Runs a command that ends by itself."""
        deadline = time.monotonic() + PATIENCE / 2
        while True:
            status, said = self.bash(self.names.put(text))
            if not step.shown:
                # `check` tells its verdict by its exit code, and chance decides the verdict.
                if status != 0 and not (text.startswith("quorate check ") and "atomic" in said):
                    raise Failed(f"exit code {status}:\n{said}")
                return
            said = said.split("\n")
            if self.names.same(step.shown, said):
                return
            if either:
                self.names.exchange(*either.split(","))
            if not SHOWING.match(text) or time.monotonic() > deadline:
                raise Failed(self.names.difference(step.shown, said))
            time.sleep(0.2)

    def bash(self, command):
        """Runs a command. Returns its exit code, and what it prints: first its errors, then its output."""
        names = self.names.real.items()
        hosts = {f"host_{name}": self.hosts[real] for name, real in names if real in self.hosts}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                ["bash", "-c", command], cwd=self.place, env=self.environment | hosts, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
            )
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                raise Failed(f"`{command}` takes more than {PATIENCE} s") from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            out.seek(0)
            errors.seek(0)
            return process.returncode, errors.read().decode() + out.read().decode()

    def start(self, command):
        """Starts a command that does not end by itself."""
        self.lasting.append(Lasting(command, self.place, self.environment))
        return self.lasting[-1]

    def host(self, text):
        """Starts a host of a service."""
        process = self.start(self.names.put(text))
        process.wait("does not say where it listens", lambda said: "listens at" in said)
        self.hosts[self.names.put(re.search(r"--listen .*?:(\d+)", text)[1])] = str(process.process.pid)
        return process

    def up(self, text):
        """Starts a cluster at free ports, and returns what it prints."""
        documented = int((re.search(r"--port (\d+)", text) or ["", "24700"])[1])
        command = self.names.put(re.sub(r" --port \d+", " --port 0", text))
        if LASTING.match(text):
            said = self.start(command).wait("does not start", lambda said: "are in" in said and said)
        else:
            _, said = self.bash(command)
        match = re.search(r"spoken at 127\.0\.0\.1:(\d+)", said)
        if match is None:
            raise Failed(f"`{text}` does not say where it listens:\n{said}")
        self.names.range(documented, int(match[1]), 100)
        return said

    # Sessions.

    def opened(self, before, command, prompt):
        if before is not None:
            before.stop()
        return Terminal(["bash", "-c", f"exec {self.names.put(command)}"], prompt, self.environment)

    def statement(self, step):
        if self.psql is None:
            raise Failed("no psql runs: the document has to start it before (`$ psql …`)")
        if step.prompt != self.psql.shows:
            raise Failed(f"the prompt is {self.psql.shows}")
        said = self.psql.ask(step.text)
        if step.shown:
            if not self.names.same(step.shown, said):
                raise Failed(self.names.difference(step.shown, said))
        elif any(re.match("ERROR|FATAL|WARNING|invalid", line) for line in said):
            raise Failed("\n".join(said))

    def redis_command(self, step):
        if self.redis is None:
            raise Failed("no redis-cli runs: the document has to start it before (`$ redis-cli …`)")
        said = self.redis.ask(re.sub(r"\s{2,}# .*", "", step.text))
        if not self.names.same(step.shown, said):
            raise Failed(self.names.difference(step.shown, said))

    # Blocks of other languages.

    def node(self, block):
        """Starts a process with a configuration, which listens at a free port and asks no other machine."""
        text = "\n".join(block.lines) + "\n"
        if "domain =" in text:
            self.configuration = text
        else:
            changed = [line.split("=")[0] for line in block.lines]
            for line in self.configuration.split("\n"):
                if line.split("=")[0] not in changed:
                    text += line + "\n"
        path = f"{self.place}/node.toml"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        settings = [f"{key}=127.0.0.1:0" for key in ("listen", "http_listen", "redis_listen") if key in text]
        settings += [f"data_dir={self.place}/node", 'routers=["127.0.0.1:1"]']
        words = " ".join(f"--set '{each}'" for each in settings)
        process = self.start(f"quorate node --config {path} {words}")
        said = process.wait("does not say where it listens", lambda said: said.endswith("}\n") and said)
        bound = json.loads(said)
        if not bound.get("listen", "").startswith("127.0.0.1:"):
            raise Failed(f"it listens at {bound}")
        process.stop()
        shutil.rmtree(f"{self.place}/node", ignore_errors=True)
        return "started"

    def python(self, block):
        """Runs a program."""
        with open(f"{self.place}/program.py", "w", encoding="utf-8") as file:
            file.write(self.names.put("\n".join(block.lines)) + "\n")
        status, said = self.bash("python3 program.py")
        if status != 0:
            raise Failed(f"exit code {status}:\n{said}")
        return "run"

    def stop(self):
        """Ends all that the document has started, and removes its directory."""
        for terminal in (self.psql, self.redis):
            if terminal is not None:
                terminal.stop()
        # A command that was interrupted leaves clusters of its own.
        for cluster in map(os.path.dirname, glob.glob(f"{self.place}/*/cluster.json")):
            try:
                subprocess.run(
                    [f"{self.programs}/quorate", "down", "--destroy", "--yes", "--data-dir", cluster],
                    check=False, timeout=PATIENCE, stdin=subprocess.DEVNULL, capture_output=True,
                )
            except subprocess.TimeoutExpired:
                print(f"the cluster in {cluster} did not stop", flush=True)
        for process in self.lasting:
            process.stop()
        shutil.rmtree(self.place, ignore_errors=True)


def main():
    programs = os.path.abspath(sys.argv[1])
    names = sys.argv[2:] or other_documents() + DOCUMENTS
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failures = []
    for name in names:
        began = time.monotonic()
        document = Document(name, programs)
        try:
            if name in DOCUMENTS:
                document.run()
            else:
                document.examine()
        except Failed as failed:
            failures.append(name)
            print(failed, flush=True)
        finally:
            document.stop()
        counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(document.counts.items()))
        print(f"{name}: {counted}; {time.monotonic() - began:.0f} s", flush=True)
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()

"""Sends random commands of one client over RESP2 and RESP3. Each answer must equal a dictionary's.

The maps are one of partial quorums, and one of a service for the commands that partial quorums refuse."""

import random
import re
import sys

import redis

COMMANDS = 25_000
KEYS = [f"k{n}" for n in range(12)]
FIELDS = [f"f{n}" for n in range(5)]
NUMBER = re.compile("0|-?[1-9][0-9]*")


# Lives in seconds that outlast the check.
LIVES = ("10000", "20000", "30000")


class Twin:
    """The answers that a client expects of a map that only it uses."""

    def __init__(self):
        self.keys = {}

    def string(self, key):
        value = self.keys.get(key)
        if isinstance(value, dict):
            raise TypeError
        return value

    def hash(self, key):
        value = self.keys.get(key, {})
        if not isinstance(value, dict):
            raise TypeError
        return value

    def answer(self, command, *arguments):
        return getattr(self, command.lower())(*arguments)

    def get(self, key):
        return self.string(key)

    def set(self, key, value):
        self.keys[key] = value
        return True

    def incrby(self, key, number):
        value = self.string(key)
        if value is not None and not NUMBER.fullmatch(value):
            raise ValueError("value is not an integer or out of range")
        count = int(value or 0) + int(number)
        if not -(1 << 63) <= count < 1 << 63:
            raise ValueError("increment or decrement would overflow")
        self.keys[key] = str(count)
        return count

    def decrby(self, key, number):
        return self.incrby(key, -int(number))

    def incr(self, key):
        return self.incrby(key, 1)

    def decr(self, key):
        return self.incrby(key, -1)

    def mset(self, *pairs):
        self.keys.update(zip(pairs[::2], pairs[1::2]))
        return True

    def mget(self, *keys):
        values = [self.keys.get(key) for key in keys]
        return [None if isinstance(value, dict) else value for value in values]

    def exists(self, *keys):
        return sum(key in self.keys for key in keys)

    def strlen(self, key):
        return len(self.string(key) or "")

    def type(self, key):
        value = self.keys.get(key)
        return "none" if value is None else "hash" if isinstance(value, dict) else "string"

    def ttl(self, key):
        return -1 if key in self.keys else -2

    def delete(self, *keys):
        return sum(self.keys.pop(key, None) is not None for key in keys)

    def hset(self, key, *pairs):
        fields = self.hash(key)
        fresh = len(set(pairs[::2]) - fields.keys())
        fields.update(zip(pairs[::2], pairs[1::2]))
        self.keys[key] = fields
        return fresh

    def hdel(self, key, *names):
        fields = self.hash(key)
        count = sum(fields.pop(name, None) is not None for name in names)
        if not fields:
            self.keys.pop(key, None)
        return count

    def hget(self, key, name):
        return self.hash(key).get(name)

    def hmget(self, key, *names):
        return [self.hash(key).get(name) for name in names]

    def hgetall(self, key):
        return dict(self.hash(key))

    def hlen(self, key):
        return len(self.hash(key))

    def hexists(self, key, name):
        return int(name in self.hash(key))

    def hkeys(self, key):
        return sorted(self.hash(key))

    def hvals(self, key):
        fields = self.hash(key)
        return [fields[name] for name in sorted(fields)]


class AtomicTwin(Twin):
    """A map that also has commands which read and write atomically, and commands that change lives."""

    def __init__(self):
        super().__init__()
        self.lives = {}

    def answer(self, command, *arguments):
        try:
            return super().answer(command, *arguments)
        finally:
            self.lives = {key: life for key, life in self.lives.items() if key in self.keys}

    def ttl(self, key):
        return self.lives.get(key, -1) if key in self.keys else -2

    def set(self, key, value, *options):
        before = self.string(key) if "GET" in options else None
        is_there = key in self.keys
        done = not ("NX" in options and is_there or "XX" in options and not is_there)
        if done:
            self.keys[key] = value
            if "KEEPTTL" not in options:
                self.lives.pop(key, None)
            if "EX" in options:
                self.lives[key] = int(options[options.index("EX") + 1])
        return before if "GET" in options else True if done else None

    def mset(self, *pairs):
        for key in pairs[::2]:
            self.lives.pop(key, None)
        return super().mset(*pairs)

    def setnx(self, key, value):
        return int(self.set(key, value, "NX") is True)

    def msetnx(self, *pairs):
        if any(key in self.keys for key in pairs[::2]):
            return 0
        return int(self.mset(*pairs))

    def getset(self, key, value):
        return self.set(key, value, "GET")

    def getdel(self, key):
        value = self.string(key)
        self.keys.pop(key, None)
        return value

    def getex(self, key, *options):
        value = self.string(key)
        if value is not None and options == ("PERSIST",):
            self.lives.pop(key, None)
        elif value is not None and options:
            self.lives[key] = int(options[1])
        return value

    def append(self, key, value):
        self.keys[key] = (self.string(key) or "") + value
        return len(self.keys[key].encode())

    def expire(self, key, seconds, *options):
        if key not in self.keys:
            return 0
        before = self.lives.get(key)
        # Of two lives with the same number of seconds, the later one ends later.
        holds = {"NX": before is None, "XX": before is not None, "GT": before is not None and int(seconds) >= before,
                 "LT": before is None or int(seconds) < before}
        if not all(holds[option] for option in options):
            return 0
        if int(seconds) <= 0:
            del self.keys[key]
        else:
            self.lives[key] = int(seconds)
        return 1

    def persist(self, key):
        return int(self.lives.pop(key, None) is not None)

    def hsetnx(self, key, name, value):
        return 0 if name in self.hash(key) else self.hset(key, name, value)

    def hincrby(self, key, name, number):
        value = self.hash(key).get(name, "0")
        if not NUMBER.fullmatch(value):
            raise ValueError("hash value is not an integer")
        count = int(value) + int(number)
        if not -(1 << 63) <= count < 1 << 63:
            raise ValueError("increment or decrement would overflow")
        self.hset(key, name, str(count))
        return count

    def dbsize(self):
        return len(self.keys)


def draw_atomic(chance):
    key, name = chance.choice(KEYS), chance.choice(FIELDS)
    value = "".join(chance.choices("ab\r\n\0é", k=chance.randrange(9)))
    keys = chance.choices(KEYS, k=chance.randrange(1, 4))
    digits = str(chance.choice([0, 7, -12, 10**6, 2**62, -2**62]))
    life = chance.choice(LIVES)
    options = chance.choice([(), ("NX",), ("XX",)]) + chance.choice([(), ("GET",)])
    options += chance.choice([(), ("KEEPTTL",), ("EX", life)])
    return chance.choice([
        ("SET", key, value, *options), ("SET", key, digits, *options), ("SETNX", key, value), ("GETSET", key, value),
        ("MSETNX", *(it for key in keys for it in (key, value + key))), ("GETDEL", key), ("TTL", key), ("TTL", key),
        ("GETEX", key, *chance.choice([(), ("EX", life), ("PERSIST",)])), ("APPEND", key, value),
        ("EXPIRE", key, chance.choice([*LIVES, "-1", "0"]), *chance.choice([(), ("NX",), ("XX",), ("GT",), ("LT",)])),
        ("PERSIST", key), ("HSETNX", key, name, value), ("HSET", key, name, digits), ("HINCRBY", key, name, digits),
        ("DBSIZE",),
    ])


def draw(chance):
    key, name = chance.choice(KEYS), chance.choice(FIELDS)
    value = "".join(chance.choices("ab\r\n\0é", k=chance.randrange(9)))
    keys = chance.choices(KEYS, k=chance.randrange(1, 4))
    names = chance.choices(FIELDS, k=chance.randrange(1, 4))
    digits = str(chance.choice([0, 7, -12, 10**6, 2**62, -2**62]))
    return chance.choice([
        ("INCR", key), ("DECR", key), ("INCRBY", key, digits), ("DECRBY", key, digits), ("SET", key, digits),
        ("GET", key), ("SET", key, value), ("MSET", *(it for key in keys for it in (key, value + key))),
        ("MGET", *keys), ("EXISTS", *keys), ("TYPE", key), ("TTL", key), ("DELETE", *keys),
        ("HSET", key, *(it for name in names for it in (name, value + name))), ("HDEL", key, *names),
        ("HGET", key, name), ("HMGET", key, *names), ("HGETALL", key), ("HLEN", key), ("HEXISTS", key, name),
        ("HKEYS", key), ("HVALS", key),
    ])


def main(host, port):
    for protocol in (2, 3):
        compare(host, port, protocol, Twin(), draw, COMMANDS, "COPIES", "3", "REPAIR", "blocking")
        either = lambda chance: chance.choice([draw, draw_atomic])(chance)
        compare(host, port, protocol, AtomicTwin(), either, COMMANDS, "STRATEGY", "service")
    print(f"{4 * COMMANDS} commands, answers as expected")


def compare(host, port, protocol, twin, draw, commands, *kept):
    client = redis.Redis(host=host, port=int(port), protocol=protocol, decode_responses=True, single_connection_client=True)
    # The default callback would turn the answer of SET with GET into a truth value.
    client.set_response_callback("SET", lambda told, **_: True if told == "OK" else told)
    name = f"random{protocol}{kept[1]}"
    client.execute_command("QUORATE", "CREATE", name, *kept)
    client.execute_command("QUORATE", "MAP", name)
    chance = random.Random(protocol)
    for number in range(commands):
        command = draw(chance)
        try:
            wanted = twin.answer(*command)
        except TypeError:
            wanted = "WRONGTYPE"
        except ValueError as error:
            wanted = str(error)
        words = ("DEL", *command[1:]) if command[0] == "DELETE" else command
        try:
            told = client.execute_command(*words)
        except redis.ResponseError as error:
            told = str(error)
            told = "WRONGTYPE" if told.startswith("WRONGTYPE ") else told
        if isinstance(told, bool):
            told = told if wanted is True else int(told)
        assert told == wanted, f"RESP{protocol}, {name}, command {number}: {words}: {told!r}, not {wanted!r}"


main(*sys.argv[1:])

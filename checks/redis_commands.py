"""Random commands of one client, over RESP2 and RESP3: each answer is that of a dictionary."""

import random
import re
import sys

import redis

COMMANDS = 25_000
KEYS = [f"k{n}" for n in range(12)]
FIELDS = [f"f{n}" for n in range(5)]
NUMBER = re.compile("0|-?[1-9][0-9]*")


class Twin:
    """What one client may expect of a map that is its own."""

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
        client = redis.Redis(host=host, port=int(port), protocol=protocol, decode_responses=True)
        client.execute_command("QUORATE", "CREATE", f"random{protocol}", "COPIES", "3", "REPAIR", "blocking")
        client = redis.Redis(host=host, port=int(port), protocol=protocol, decode_responses=True, single_connection_client=True)
        client.execute_command("QUORATE", "MAP", f"random{protocol}")
        chance, twin = random.Random(protocol), Twin()
        for number in range(COMMANDS):
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
            assert told == wanted, f"RESP{protocol}, command {number}: {words}: {told!r}, not {wanted!r}"
    print(f"{2 * COMMANDS} commands, answers as expected")


main(*sys.argv[1:])

"""Makes random expressions without parentheses around operators, with every ordered pair of operators, including
prefix and postfix ones. PostgreSQL tells which kinds of operands a pair accepts. Then each pair is drawn with
such operands, alone and with a third operator.

    random_expressions.py pairs SEED                             pairs of operators, with operands of all kinds
    random_expressions.py draw SEED TIMES PAIRS ANSWERS          expressions, TIMES for each accepted pair
    random_expressions.py ask EXPRESSIONS                        for psql: one answer a line, behind its number
    random_expressions.py views EXPRESSIONS ANSWERS READ         for psql: how PostgreSQL prints what it read, with parentheses
    random_expressions.py judge EXPRESSIONS THEIRS OURS TIMES    compares, counts, and fails

A line holds the pair, a tab, and the expression. An answer holds the rows' values, or ERROR and an SQLSTATE.
READ holds the expressions as Quorate read them, with parentheses, or ERROR and an SQLSTATE."""

import collections
import itertools
import random
import re
import sys

BETWEEN = [
    "+", "-", "*", "/", "%", "||", "=", "<>", "<", "<=", ">", ">=", "~~", "!~~", "~~*", "!~~*", "and", "or",
    "like", "not like", "ilike", "not ilike", "is distinct from", "is not distinct from",
]
BEFORE = ["- ", "+ ", "not"]
BEHIND = [
    "is null", "is not null", "isnull", "notnull", "is true", "is not true", "is false", "is not false", "is unknown",
    "is not unknown", "::text", "::int", "::numeric", "::bool", 'collate "C"', "in", "not in", "= any", "<> all", "< any",
    "like any", "not like all",
]
AMONG = ["between", "not between"]
# PostgreSQL has these operators. Quorate refuses them by name.
REFUSED = ["^", "&", "|", "#", "<<", ">>", "~", "!~", "~*", "^@", "similar to", "at time zone", "operator(pg_catalog.+)", "@ ", "~ ", "|/ "]
REFUSED_BEFORE = ["@ ", "~ ", "|/ "]
PREFIXES = BEFORE + REFUSED_BEFORE
OPERATORS = BETWEEN + BEFORE + BEHIND + AMONG + REFUSED

COLUMNS = {"int": ["a", "b"], "text": ["s", "t", "u"], "bool": ["k", "l"]}
CONSTANTS = {"int": ["1", "2", "7"], "text": ["'a%'::text"], "bool": ["true", "false"]}
KINDS = [*COLUMNS]
# These operators may fail. PostgreSQL computes constants in advance, and then it may skip an operand that
# would fail.
FAILING = ["/", "%", "::int", "::numeric", "::bool"]
# Number of combinations of other kinds of operands that are tried for one pair.
COMBINATIONS = 32


def shape(operators, low):
    """Returns the expression with `{}` for each operand and `[]` for each list. Returns None for a misplaced prefix."""
    parts, closing, wanted = [], [], True
    for operator in operators:
        if operator in PREFIXES:
            if not wanted:
                return None
            parts.append(operator.strip())
            continue
        if wanted:
            parts.append("{}")
        wanted = operator not in BEHIND
        if operator in AMONG:
            parts += [operator] if low else [operator, "{}", "and"]
            closing += ["and", "{}"] if low else []
        elif operator in ("in", "not in"):
            parts.append(operator + " ([])")
        elif operator.endswith((" any", " all")):
            parts.append(operator + " (array[[]])")
        else:
            parts.append(operator)
    return " ".join(parts + (["{}"] if wanted else []) + closing)


def slots(text):
    return re.findall(r"\{\}|\[\]", text)


def filled(text, kinds, draw):
    kinds = iter(kinds)
    fails = any(operator in text for operator in FAILING)

    def put(slot):
        kind = next(kinds)
        operands = COLUMNS[kind] if fails else COLUMNS[kind] + CONSTANTS[kind]
        return draw.choice(operands) if slot[0] == "{}" else ", ".join(draw.choice(operands) for _ in range(2))

    return re.sub(r"\{\}|\[\]", put, text)


def pairs(seed):
    draw = random.Random(seed)
    for pair in itertools.product(OPERATORS, repeat=2):
        # One operator may not accept the other's result, but a comparison between them may: `a = b + c is
        # true`.
        for operators in [pair, ("=", *pair), (*pair, "=")]:
            for low in [False, True] if set(pair) & set(AMONG) else [False]:
                text = shape(operators, low)
                if text is None or low and operators[-1] == "=":
                    continue
                combinations = list(itertools.product(KINDS, repeat=len(slots(text))))
                for kinds in draw.sample(combinations, min(len(combinations), COMBINATIONS)):
                    how = ",".join(operators) + f"\t{int(low)} {' '.join(kinds)}"
                    yield ",".join(pair) + "\t" + how + "\t" + filled(text, kinds, draw)


def lines(path):
    with open(path) as file:
        return file.read().splitlines()


def answers(path):
    """Returns the answers by their numbers."""
    found = {}
    for line in lines(path):
        if line.startswith("#"):
            number = int(line[1:])
            found[number] = ""
        elif line:
            error = re.search(r"ERROR: +([0-9A-Z]{5})", line)
            found[number] += "ERROR " + error[1] if error else line
    return found


def accepts(answer):
    """Whether PostgreSQL can parse the expression: any error is one of its values."""
    return not answer.startswith("ERROR 42")


def draw_all(seed, times, pairs_path, answers_path):
    draw = random.Random(seed)
    accepted = collections.defaultdict(list)
    said = answers(answers_path)
    for number, line in enumerate(lines(pairs_path)):
        pair, operators, how, _ = line.split("\t")
        if accepts(said[number]):
            accepted[pair].append((operators.split(","), *how.split()))
    supported = set(OPERATORS) - set(REFUSED)
    for pair, found in accepted.items():
        for place in range(times if set(pair.split(",")) <= supported else 1):
            operators, low, *kinds = draw.choice(found)
            text = filled(shape(operators, low == "1"), kinds, draw)
            yield f"{pair}\t{text}"
            # In every third expression a further operator follows, whatever PostgreSQL says of it.
            if place % 3 == 0:
                whole = shape(operators, low == "1") + shape((draw.choice(BETWEEN + BEHIND),), False)[2:]
                kinds += [draw.choice(KINDS) for _ in slots(whole)[len(kinds) :]]
                yield f"{pair}\t" + filled(whole, kinds, draw)


def ask(path):
    print("\\pset recordsep ' ~ '")
    for number, line in enumerate(lines(path)):
        print(f"\\echo '#{number}'")
        print(f"select {line.split(chr(9))[-1]} from x order by id;")


def views(path, answers_path, read_path):
    """Makes views of many columns. PostgreSQL prints the expressions of a view with all parentheses."""
    said, beside = answers(answers_path), lines(read_path)
    has_both = lambda number: "ERROR" not in said[number] and "ERROR" not in beside[number]
    read = [line for number, line in enumerate(lines(path)) if has_both(number)]
    for start in range(0, len(read), 200):
        columns = [line.split("\t")[-1] + f" as c{place}" for place, line in enumerate(read[start : start + 200])]
        print(f"create temp view v{start} as select {', '.join(columns)} from x;")
        print(f"select pg_get_viewdef('v{start}'::regclass);")


def judge(path, theirs_path, ours_path, times):
    theirs, ours = answers(theirs_path), answers(ours_path)
    stood, refused, wrong = collections.Counter(), collections.Counter(), []
    read = 0
    for number, line in enumerate(lines(path)):
        pair, text = line.split("\t")
        if not accepts(theirs[number]):
            # PostgreSQL has no answer, so Quorate must have none.
            if not ours[number].startswith("ERROR"):
                wrong.append((text, theirs[number], ours[number]))
            continue
        read += 1
        stood[pair] += 1
        if ours[number] == "ERROR 0A000":
            names = [operator for operator in pair.split(",") if operator in REFUSED]
            refused[names[0].strip() if names else pair] += 1
        elif ours[number] != theirs[number]:
            wrong.append((text, theirs[number], ours[number]))
    for text, expected, found in wrong[:30]:
        print(f"{text}\n  PostgreSQL: {expected}\n  Quorate:    {found}")
    supported = set(OPERATORS) - set(REFUSED)
    rare = {pair: count for pair, count in stood.items() if set(pair.split(",")) <= supported and count < times}
    answered = read - sum(refused.values())
    print(f"{read} expressions that PostgreSQL accepts, {len(stood)} pairs of operators, {answered} answered, {len(wrong)} otherwise")
    print("refused by name: " + ", ".join(f"{name} {count}" for name, count in refused.most_common()))
    print(f"pairs less than {times} times: {rare}") if rare else None
    sys.exit(bool(wrong or rare or answered < 0.95 * read))


command, *arguments = sys.argv[1:]
if command == "pairs":
    print(*pairs(int(arguments[0])), sep="\n")
elif command == "draw":
    print(*draw_all(int(arguments[0]), int(arguments[1]), *arguments[2:]), sep="\n")
elif command == "ask":
    ask(arguments[0])
elif command == "views":
    views(*arguments)
else:
    judge(*arguments[:3], int(arguments[3]))

"""Makes random statements over one table. `random_statements.py SEED COUNT` writes them for psql, each behind a
line that shows it. The statements use only what both sides promise. Floats are multiples of a half, so the order
of a sum does not matter. No letter outside ASCII has an upper case. Equal numbers are written alike, because a
group may show any of them."""

import random
import sys

seed, count = map(int, sys.argv[1:])
draw = random.Random(seed)

COLUMNS = {
    "int": ["a", "n"], "bigint": ["b"], "numeric": ["c"], "float8": ["d"], "text": ["s", "v"], "bool": ["k"],
    "date": ["day"], "timestamptz": ["at"],
}
CONSTANTS = {
    "int": ["0", "1", "-1", "2", "7", "100", "2147483647", "-2147483648", "null::int"],
    "bigint": ["5000000000", "-3::int8", "9223372036854775807", "null::int8"],
    "numeric": ["1.5", "-0.25", "250.75", "99999999999999999999.5", "null::numeric"],
    "float8": ["0.5::float8", "-2::float8", "1e300::float8", "null::float8"],
    "text": ["''", "'a'", "'Ab%c'", "'x_y'", "'zw€lf'", "null::text"],
    "bool": ["true", "false", "null::bool"],
    "date": ["date '2013-01-31'", "date '2012-02-29'", "null::date"],
    "timestamptz": ["timestamptz '2013-01-31 05:00+00'", "timestamptz '1999-12-31 23:59:59.5+00'"],
    "interval": ["interval '1 month'", "interval '1 day 02:00'", "interval '-90 minutes'"],
}
NUMBERS = ["int", "bigint", "numeric", "float8"]


def leaf(kind):
    if kind in COLUMNS and draw.random() < 0.7:
        return draw.choice(COLUMNS[kind])
    return draw.choice(CONSTANTS[kind])


def expr(kind, depth):
    if depth <= 0 or draw.random() < 0.25:
        return leaf(kind)
    e = lambda kind: expr(kind, depth - 1)
    column = lambda kind: draw.choice(COLUMNS[kind])
    general = [
        lambda: f"coalesce({e(kind)}, {e(kind)})",
        lambda: f"(case when {e('bool')} then {e(kind)} else {e(kind)} end)",
        lambda: f"nullif({e(kind)}, {leaf(kind)})",
    ]
    if kind in NUMBERS:
        own = [
            lambda: f"({e(kind)} {draw.choice('+-*')} {e(kind)})",
            # The divisor is a column, because PostgreSQL computes constants even if no row needs them.
            lambda: f"({e(kind)} / {column(kind)})",
            lambda: f"(- {column(kind)})",
            lambda: f"abs({e(kind)})",
            lambda: f"greatest({e(kind)}, {e(kind)})",
        ]
        own += {
            "int": [lambda: f"length({e('text')})", lambda: f"({e('int')} % {column('int')})", lambda: f"({e('date')} - {e('date')})",
                    lambda: f"strpos({e('text')}, {leaf('text')})"],
            "bigint": [lambda: f"({e('int')})::int8"],
            "numeric": [lambda: f"round({e('numeric')}, {draw.randint(-2, 3)})", lambda: f"trunc({e('numeric')})",
                        lambda: f"extract({draw.choice(['year', 'dow', 'hour', 'epoch', 'second'])} from {e('timestamptz')})",
                        lambda: f"({column('numeric')})::numeric(12,{draw.randint(0, 3)})"],
            "float8": [lambda: f"({e('int')})::float8", lambda: f"floor({e('float8')})"],
        }[kind]
    else:
        own = {
            "text": [lambda: f"({e('text')} || {e('text')})", lambda: f"upper({e('text')})", lambda: f"substr({e('text')}, {draw.randint(-1, 3)}, {draw.randint(0, 4)})",
                     lambda: f"({e(draw.choice(['int', 'numeric', 'date', 'bool']))})::text", lambda: f"replace({e('text')}, 'a', {leaf('text')})",
                     lambda: f"({e('text')})::varchar({draw.randint(1, 5)})::text", lambda: f"lpad({e('text')}, {draw.randint(0, 6)}, '*')"],
            "bool": [lambda: condition(depth - 1)] * 4,
            "date": [lambda: f"({e('date')} + {draw.randint(-400, 400)})", lambda: f"({e('timestamptz')})::date"],
            "timestamptz": [lambda: f"({e('timestamptz')} {draw.choice('+-')} {e('interval')})",
                            lambda: f"date_trunc('{draw.choice(['month', 'hour', 'week', 'quarter'])}', {e('timestamptz')})"],
            "interval": [lambda: f"({e('timestamptz')} - {e('timestamptz')})", lambda: f"({e('interval')} * {draw.randint(-3, 3)})"],
        }[kind]
        if kind == "interval":
            general = own
    return draw.choice(own + general)()


def condition(depth):
    kind = draw.choice([*COLUMNS, "interval"] if depth > 0 else [*COLUMNS])
    e = lambda kind: expr(kind, depth - 1)
    same = lambda: (e(kind), e(kind))
    forms = [
        lambda: "({} {} {})".format(e(kind), draw.choice(["=", "<>", "<", "<=", ">", ">="]), e(kind)),
        lambda: "({} is {}null)".format(e(draw.choice([*COLUMNS])), draw.choice(["", "not "])),
        lambda: "({} {}between {} and {})".format(e(kind), draw.choice(["", "not "]), *same()) if kind != "interval" else condition(depth - 1),
        lambda: "({} {}in ({}))".format(e("int"), draw.choice(["", "not "]), ", ".join(leaf("int") for _ in range(3))),
        lambda: "({} {} {}(array[{}]))".format(e("int"), draw.choice(["=", "<>", "<", ">="]), draw.choice(["any", "all"]), ", ".join(leaf("int") for _ in range(3))),
        lambda: "({} {}{} {})".format(e("text"), draw.choice(["", "not "]), draw.choice(["like", "ilike"]), draw.choice(["'%a%'", "'_'", "'x\\_%'", "''", "'Z%'"])),
        lambda: "({} is {}distinct from {})".format(e("text"), draw.choice(["", "not "]), e("text")),
        lambda: f"({condition(depth - 1)} {draw.choice(['and', 'or'])} {condition(depth - 1)})",
        lambda: f"(not {condition(depth - 1)})",
        lambda: f"({e('bool')} is {draw.choice(['true', 'not true', 'false', 'unknown'])})",
    ]
    return draw.choice(forms)() if depth > 0 else forms[0]()


def any_expr(depth=2):
    return expr(draw.choice([*COLUMNS]), depth)


def aggregate():
    kind = draw.choice([*COLUMNS])
    halves = draw.choice(["d", "a::float8", "n * 0.5::float8"])
    call = draw.choice([
        "count(*)", f"count({any_expr(1)})", f"count(distinct {leaf('int')})", f"sum({leaf(draw.choice(['int', 'bigint', 'numeric']))})",
        f"avg({draw.choice(['a', 'b', 'c'])})", f"sum({halves})", f"min({leaf('date')})", f"max({leaf('text')})", f"min({leaf('numeric')})",
        f"bool_and({leaf('bool')})", f"bool_or({condition(1)})", f"sum(distinct {leaf('int')})", f"max({leaf('timestamptz')})",
    ])
    return call + (f" filter (where {condition(1)})" if draw.random() < 0.25 else "")


def where():
    return f" where {condition(2)}" if draw.random() < 0.7 else ""


def nulls():
    return draw.choice(["", " desc", " nulls first", " desc nulls last"])


def row(number):
    return "({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})".format(
        number, draw.choice(["null", draw.randint(-9, 9)]), draw.choice([0, 1, 2, 2, 3]), draw.choice(["null", draw.randint(-(10**12), 10**12)]),
        draw.choice(["null", f"{draw.randint(-9999, 9999) / 100}"]), draw.choice(["null", f"{draw.randint(-20, 20) / 2}"]),
        draw.choice(["null", "''", "'a'", "'Ab%c'", "'x_y'", "'zw€lf'", "'zz'"]), draw.choice(["null", "'abc'", "'wider'", "'ab   '"] * 5 + ["'too wide'"]),
        draw.choice(["null", "true", "false"]), draw.choice(["null", f"date '2012-02-{draw.randint(1, 29)}'"]),
        draw.choice(["null", f"timestamptz '2013-01-{draw.randint(1, 31)} {draw.randint(0, 23)}:30+00'"]))


def statement():
    kind = draw.random()
    if kind < 0.35:
        limit = draw.choice(["", f" limit {draw.randint(0, 9)}", f" limit {draw.randint(1, 9)} offset {draw.randint(0, 9)}"])
        return f"select id, {any_expr()}, {any_expr()} from r{where()} order by coalesce({any_expr(1)}, null){nulls()}, id{limit}"
    if kind < 0.45:
        return f"select distinct {leaf_column()}, {leaf_column()} from r{where()} order by 1{nulls()}, 2"
    if kind < 0.6:
        having = draw.choice(["", " having count(*) > 1", f" having {aggregate().split(' filter')[0]} is not null"])
        return f"select {leaf_column()} g, {aggregate()}, {aggregate()} from r{where()} group by 1{having} order by 1{nulls()}"
    if kind < 0.7:
        return f"select {aggregate()}, {aggregate()} from r{where()}"
    if kind < 0.75:
        return f"select count(*), max(x) from (select {any_expr(1)} as x from r{where()}) as t where x is not null"
    if kind < 0.85:
        numbers = [draw.randint(0, 80) for _ in range(draw.choice([1, 1, 2]))]
        return "insert into r values " + ", ".join(row(number) for number in numbers)
    if kind < 0.95:
        target = draw.choice(["int", "bigint", "numeric", "float8", "text", "bool", "date", "timestamptz"])
        column = draw.choice(COLUMNS[target])
        return f"update r set {column} = {expr(target, 2)} where {condition(1)} and id % 7 = {draw.randint(0, 6)}"
    return f"delete from r where {condition(2)} and id % 11 = {draw.randint(0, 10)}"


def leaf_column():
    return draw.choice([column for columns in COLUMNS.values() for column in columns if column != "d"])


print("create table r (id int primary key, a int, n int not null, b bigint, c numeric, d float8, s text, v varchar(5), k bool, day date, at timestamptz);")
for number in range(60):
    print(f"insert into r values {row(number)};")
for _ in range(count):
    text = statement()
    print("\\echo '>>>'", "'" + text.replace("'", "''").replace("\\", "\\\\") + "'")
    if text.startswith("select"):
        print(text, "\\gdesc")
        print("\\echo '---'")
    print(text + ";")
print("\\echo '>>>' everything")
print("select * from r order by id;")

"""Tests a session through psycopg: implicit transactions, parameters, arrays, intervals, cursors, COPY, errors."""

import datetime
import sys
from decimal import Decimal

import psycopg

host, port = sys.argv[1:]
connection = psycopg.connect(host=host, port=port, user="quorate", dbname="quorate", connect_timeout=10)


def check(got, wanted):
    if got != wanted:
        sys.exit(f"got {got!r}, not {wanted!r}")


with connection.cursor() as cursor:
    # psycopg opens a transaction by itself. Reads and one last write fit in one.
    cursor.execute("select count(*), min(time_hour) from flights where dest = %s", ("LAX",))
    check(cursor.fetchone()[0], 16174)
    cursor.execute("select avg(distance) from flights where carrier = %s and month = %s", ("HA", 1), binary=True)
    check(cursor.fetchone(), (Decimal("4983.0000000000000000"),))
    connection.commit()

connection.autocommit = True
with connection.cursor() as cursor:
    cursor.execute(
        "create table things (id bigint not null, name text, price numeric, made date, seen timestamptz, good bool, size float8)"
        " with (partition_by = 'hash(id)')"
    )
    rows = [
        (1, "one", Decimal("1.50"), datetime.date(2013, 1, 1), datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC), True, 0.5),
        (2, "zwölf", None, None, None, False, -1e300),
        (3, None, Decimal("-0.001"), datetime.date(1999, 12, 31), None, None, None),
    ]
    for row in rows:
        cursor.execute("insert into things values (%s, %s, %s, %s, %s, %s, %s)", row)
        check(cursor.rowcount, 1)
    for binary in (False, True):
        cursor.execute("select * from things order by id", binary=binary)
        check(cursor.fetchall(), rows)
    cursor.execute("update things set name = %s where id in (%s, %s)", ("!", 1, 2))
    check(cursor.rowcount, 2)
    cursor.execute("delete from things where good is null")
    check(cursor.rowcount, 1)

    with cursor.copy("copy things (id, name) from stdin") as copy:
        for number in range(10, 1010):
            copy.write_row((number, f"row {number}"))
    cursor.execute("select count(*), sum(id) from things where id >= 10")
    check(cursor.fetchone(), (1000, sum(range(10, 1010))))

    with cursor.copy("copy things (id, name, price) from stdin (format binary)") as copy:
        copy.set_types(["int8", "text", "numeric"])
        for number in range(2000, 2100):
            copy.write_row((number, None if number % 2 else f"row {number}", Decimal(number) / 8))
    with cursor.copy("copy (select id, name, price from things where id >= 2000 order by id) to stdout (format binary)") as copy:
        copy.set_types(["int8", "text", "numeric"])
        check([row[0] for row in copy.rows()], list(range(2000, 2100)))
    cursor.execute("select count(name), sum(price) from things where id >= 2000")
    check(cursor.fetchone(), (50, Decimal(sum(range(2000, 2100))) / 8))
    cursor.execute("delete from things where id >= 2000")

    try:
        cursor.execute("select nothing from things")
        sys.exit("an unknown column was accepted")
    except psycopg.errors.UndefinedColumn as error:
        check(error.diag.statement_position, "8")
    cursor.execute("select 1")
    check(cursor.fetchone(), (1,))

with connection.transaction():
    # A portal returns a few rows at a time.
    with connection.cursor() as cursor:
        check(sum(1 for _ in cursor.stream("select id from things")), 1002)

    # A named cursor lives on the server.
    with connection.cursor("named") as cursor:
        cursor.execute("select id from things where id >= %s order by id", (10,))
        check(cursor.fetchmany(3), [(10,), (11,), (12,)])
        check(len(cursor.fetchall()), 997)
    # A nested block fails. The outer block stays usable.
    try:
        with connection.transaction():
            connection.execute("select 1/0")
    except psycopg.errors.DivisionByZero:
        pass
    check(connection.execute("select count(*) from things").fetchone(), (1002,))

# Lists become arrays, and time differences become intervals.
for binary in (False, True):
    with connection.cursor(binary=binary) as cursor:
        cursor.execute("select id from things where id = any(%s) order by id", ([10, 12, 5000],))
        check(cursor.fetchall(), [(10,), (12,)])
        cursor.execute("select count(*) from things where name <> all(%s)", (["row 10", 'a "b" c'],))
        check(cursor.fetchone(), (1001,))
        day = datetime.timedelta(days=1, hours=2)
        cursor.execute("select timestamptz '2013-01-03' - %s, timestamp '2013-01-03' - timestamp '2013-01-01 22:00'", (day,))
        check(cursor.fetchone(), (datetime.datetime(2013, 1, 1, 22, tzinfo=datetime.UTC), day))

with connection.pipeline():
    cursors = [connection.execute("select count(*) from flights where month = %s", (month,)) for month in range(1, 13)]
    check(sum(cursor.fetchone()[0] for cursor in cursors), 336776)

# PostgreSQL refuses these statements with these SQLSTATEs. Quorate refuses two more by name. None has an
# effect.
connection.commit()
connection.autocommit = True
connection.execute("create table refusals (id int primary key, word text)")


def refused(sqlstate, sql, data=None):
    try:
        with connection.cursor() as cursor:
            if data is None:
                cursor.execute(sql)
            else:
                with cursor.copy(sql) as copy:
                    copy.write(data)
    except psycopg.Error as error:
        check((sql, error.sqlstate), (sql, sqlstate))
    else:
        sys.exit(f"was done: {sql}")


refused("22P04", "copy refusals from stdin", "1\ta\r2\tb\n")
refused("22P04", "copy refusals from stdin", "1\ta\n\\.x\n")
refused("22P04", "copy refusals from stdin (format csv)", "1,a\n2,b\r")
refused("42601", "insert into refusals values (1, 'a'), (2)")
refused("0A000", "select '{{1,2},{3,4}}'::int[]")
refused("0A000", "select relname from pg_class tablesample system (0)")
check(connection.execute("select * from refusals").fetchall(), [])
check(len(connection.execute("select id from things fetch first row only").fetchall()), 1)
connection.close()

"""Tests SQLAlchemy: its questions to the catalog, and objects that it stores and finds again."""

import datetime
import sys
from decimal import Decimal

from sqlalchemy import DateTime, MetaData, Numeric, String, create_engine, func, insert, inspect, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

host, port = sys.argv[1:]
engine = create_engine(f"postgresql+psycopg://quorate@{host}:{port}/quorate")


def check(got, wanted):
    if got != wanted:
        sys.exit(f"got {got!r}, not {wanted!r}")


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "items"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(20))
    price: Mapped[Decimal | None] = mapped_column(Numeric(8, 2))
    made: Mapped[datetime.datetime | None] = mapped_column(DateTime(timezone=True))


Base.metadata.create_all(engine)
catalog = inspect(engine)
check(sorted(catalog.get_table_names()), ["flights", "items"])
check([(column["name"], str(column["type"]), column["nullable"]) for column in catalog.get_columns("items")], [
    ("id", "INTEGER", False),
    ("name", "VARCHAR(20)", False),
    ("price", "NUMERIC(8, 2)", True),
    ("made", "TIMESTAMP", True),
])
check(catalog.get_pk_constraint("items")["constrained_columns"], ["id"])
for nothing in (catalog.get_foreign_keys, catalog.get_indexes, catalog.get_unique_constraints, catalog.get_check_constraints):
    check(nothing("items"), [])
check((catalog.has_table("items"), catalog.has_table("nothing")), (True, False))
reflected = MetaData()
reflected.reflect(engine)
check(len(reflected.tables["flights"].columns), 19)

made = datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC)
with Session(engine) as session:
    session.execute(insert(Item).values([dict(id=number, name=f"item {number}", price=Decimal(number) / 4, made=made) for number in range(18)]))
    session.add_all([Item(id=number, name=f"item {number}", price=Decimal(number) / 4, made=made) for number in (18, 19)])
    session.commit()
with Session(engine) as session:
    session.add(Item(id=20, name="item 20"))
    session.commit()
with Session(engine) as session:
    item = session.get(Item, 3)
    check((item.name, item.price, item.made), ("item 3", Decimal("0.75"), made))
    item.price += 1
    session.commit()
with Session(engine) as session:
    check(session.query(Item).filter(Item.id.in_([1, 2, 99])).count(), 2)
    check(session.scalars(select(Item.id).where(Item.price > 0).order_by(Item.price.desc()).limit(2)).all(), [19, 18])
    check(session.execute(select(func.sum(Item.price)).where(Item.id <= 3)).scalar(), Decimal("2.50"))
with Session(engine) as session:
    session.delete(session.get(Item, 0))
    session.commit()
    check(session.execute(text("select count(*) from items")).scalar(), 20)
# A block that fails leaves nothing behind.
try:
    with Session(engine) as session:
        session.add(Item(id=30, name="item 30"))
        session.flush()
        check(session.scalars(select(Item.id).where(Item.id >= 30)).all(), [30])
        session.add(Item(id=19, name="item 19"))
        session.commit()
    sys.exit("a duplicate key was taken")
except IntegrityError as error:
    check(error.orig.sqlstate, "23505")
with Session(engine) as session:
    check(session.scalars(select(Item.id).where(Item.id >= 30)).all(), [])
# Another session changes the row that this one read for update.
with Session(engine) as session, Session(engine) as other:
    item = session.get(Item, 3, with_for_update=True)
    other.get(Item, 3).name = "other"
    other.commit()
    item.name = "lost"
    try:
        session.commit()
        sys.exit("an update was lost")
    except OperationalError as error:
        check(error.orig.sqlstate, "40001")
Base.metadata.drop_all(engine)
check(inspect(engine).get_table_names(), ["flights"])

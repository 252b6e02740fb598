//! Tests references: sessions side by side, gateways that are behind, blocks, COPY, and definitions.

use crate::statements::Client;

/// Returns a session with two books, and a line that refers to the first one.
async fn books() -> Client {
    let mut client = Client::new();
    client.run("create table book (id int primary key, isbn text unique, title text)").await.unwrap();
    client.run("create table line (id int primary key, book int references book)").await.unwrap();
    client.run("insert into book values (1, 'i1', 'One'), (2, 'i2', 'Two')").await.unwrap();
    client.run("insert into line values (1, 1)").await.unwrap();
    client
}

/// Returns the lines without a book.
async fn orphans(client: &mut Client) -> Vec<String> {
    let books = client.column("select id from book").await;
    let lines = client.column("select book from line where book is not null").await;
    lines.into_iter().filter(|book| !books.contains(book)).collect()
}

#[tokio::test]
async fn a_parent_is_deleted_while_a_child_is_inserted() {
    for child_first in [true, false] {
        let mut one = books().await;
        let mut other = one.another();
        one.run("begin").await.unwrap();
        other.run("begin").await.unwrap();
        one.run("insert into line values (2, 2)").await.unwrap();
        other.run("delete from book where id = 2").await.unwrap();
        let (first, second) = if child_first { (&mut one, &mut other) } else { (&mut other, &mut one) };
        first.run("commit").await.unwrap();
        assert_eq!(second.code("commit").await, "40001", "child first: {child_first}");
        assert_eq!(orphans(&mut one).await, Vec::<String>::new());
        let left = one.column("select count(*) from line").await;
        assert_eq!(left, [if child_first { "2" } else { "1" }]);
    }
}

#[tokio::test]
async fn a_key_changes_while_a_child_is_inserted() {
    let mut one = books().await;
    let mut other = one.another();
    one.run("create table note (id int primary key, isbn text references book (isbn) on update cascade)")
        .await
        .unwrap();
    one.run("begin").await.unwrap();
    one.run("update book set isbn = 'i9' where id = 2").await.unwrap();
    other.run("insert into note values (1, 'i2')").await.unwrap();
    assert_eq!(one.code("commit").await, "40001");
    one.run("update book set isbn = 'i9' where id = 2").await.unwrap();
    assert_eq!(one.column("select isbn from note").await, ["i9"]);
    assert_eq!(other.code("insert into note values (2, 'i2')").await, "23503");
}

/// A gateway that does not know a new child deletes no parent.
#[tokio::test]
async fn a_gateway_that_is_behind_learns_of_a_new_child() {
    let mut one = Client::new();
    one.run("create table book (id int primary key, title text)").await.unwrap();
    one.run("insert into book values (1, 'One'), (2, 'Two')").await.unwrap();
    let mut behind: Vec<Client> = (0..6).map(|_| one.behind()).collect();
    let [delete, truncate, update, drop_table, create, block] = &mut behind[..] else { unreachable!() };
    block.run("begin").await.unwrap();
    block.run("delete from book where id = 2").await.unwrap();
    one.run("create table line (id int primary key, book int references book)").await.unwrap();
    one.run("insert into line values (1, 1)").await.unwrap();
    assert_eq!(delete.code("delete from book where id = 1").await, "23503");
    assert_eq!(truncate.code("truncate book").await, "0A000");
    assert_eq!(update.code("update book set title = 'Uno' where id = 1").await, "00000");
    assert_eq!(drop_table.code("drop table book").await, "2BP01");
    assert_eq!(
        create.code("create table note (id int primary key, book int references book)").await,
        "00000"
    );
    assert_eq!(block.code("commit").await, "40001", "the table was bound before it had a child");
    assert_eq!(one.column("select id from book order by id").await, ["1", "2"]);
    one.run("insert into note values (1, 2)").await.unwrap();
    assert_eq!(delete.code("delete from book where id = 2").await, "23503");
}

/// The same as for a new child, for a reference that is added to a child with rows.
#[tokio::test]
async fn a_gateway_that_is_behind_learns_of_a_new_reference() {
    let mut one = Client::new();
    one.run("create table book (id int primary key)").await.unwrap();
    one.run("create table line (id int primary key, book int)").await.unwrap();
    one.run("insert into book values (1), (2)").await.unwrap();
    one.run("insert into line values (1, 1)").await.unwrap();
    let (mut delete, mut insert) = (one.behind(), one.behind());
    one.run("alter table line add foreign key (book) references book").await.unwrap();
    assert_eq!(delete.code("delete from book where id = 1").await, "23503");
    assert_eq!(insert.code("insert into line values (2, 9)").await, "23503");
    let (mut delete, mut insert) = (one.behind(), one.behind());
    one.run("alter table line drop constraint line_book_fkey").await.unwrap();
    // The child that these gateways know has ended.
    delete.run("delete from book where id = 1").await.unwrap();
    insert.run("insert into line values (2, 9)").await.unwrap();
}

#[tokio::test]
async fn a_parent_that_is_gone_refuses_its_child() {
    let mut one = Client::new();
    one.run("create table book (id int primary key)").await.unwrap();
    let mut other = one.behind();
    one.run("drop table book").await.unwrap();
    assert_eq!(other.code("create table line (id int primary key, book int references book)").await, "42P01");
    one.run("create table book (id int primary key)").await.unwrap();
    let mut other = one.behind();
    one.run("drop table book").await.unwrap();
    one.run("create table book (id int primary key)").await.unwrap();
    other.run("create table line (id int primary key, book int references book)").await.unwrap();
}

#[tokio::test]
async fn a_reference_of_a_filled_table_is_taken_back_if_a_row_breaks_it() {
    let mut client = Client::new();
    client.run("create table book (id int primary key)").await.unwrap();
    client.run("create table line (id int primary key, a int, b bigint)").await.unwrap();
    client.run("insert into book values (1), (2)").await.unwrap();
    client.run("insert into line values (1, 1, null), (2, null, 2), (3, 7, 9)").await.unwrap();
    let add = "alter table line add constraint known foreign key (a) references book, \
               add foreign key (b) references book on delete cascade";
    let error = client.run(add).await.unwrap_err();
    assert_eq!(error.code, "23503");
    assert_eq!(error.detail.as_deref(), Some("Key (a)=(7) is not present in table \"book\"."));
    assert_eq!(error.about.constraint.as_deref(), Some("known"));
    let references = "select conname from pg_constraint where contype = 'f' order by conname";
    assert_eq!(client.column(references).await, Vec::<String>::new());
    client.run("insert into line values (4, 8, 8)").await.unwrap();
    client.run("delete from line where id in (3, 4)").await.unwrap();
    client.run(add).await.unwrap();
    assert_eq!(client.column(references).await, ["known", "line_b_fkey"]);
    assert_eq!(client.code("insert into line values (4, null, 8)").await, "23503");
    client.run("delete from book where id = 2").await.unwrap();
    assert_eq!(client.column("select id from line").await, ["1"]);
}

/// Many keys are looked up in several pieces, and the last one is found, too.
#[tokio::test]
async fn a_reference_of_a_large_table_is_checked_completely() {
    let mut client = Client::new();
    client.run("create table book (id int primary key)").await.unwrap();
    client.run("create table line (id int primary key, book int)").await.unwrap();
    let numbers: String = (0..25_000).map(|number| format!("{number}\n")).collect();
    client.copy("copy book from stdin", &numbers).await.unwrap();
    let lines: String = (0..25_000).map(|number| format!("{number}\t{number}\n")).collect();
    client.copy("copy line from stdin", &lines).await.unwrap();
    client.run("insert into line values (30000, 30000)").await.unwrap();
    let add = "alter table line add foreign key (book) references book";
    assert_eq!(client.code(add).await, "23503");
    client.run("delete from line where id = 30000").await.unwrap();
    client.run(add).await.unwrap();
    assert_eq!(client.code("delete from book where id = 24999").await, "23503");
}

#[tokio::test]
async fn copied_rows_have_parents() {
    let mut client = books().await;
    let copy = "copy line from stdin";
    assert_eq!(client.copy(copy, "5\t1\n6\t2\n7\t\\N\n").await.unwrap(), "COPY 3");
    let error = client.copy(copy, "8\t1\n9\t3\n").await.unwrap_err();
    assert_eq!(
        (&*error.code, error.detail.as_deref()),
        ("23503", Some("Key (book)=(3) is not present in table \"book\"."))
    );
    assert_eq!(client.column("select count(*) from line").await, ["4"]);
    client.run("begin").await.unwrap();
    client.run("insert into book values (3, 'i3', 'Three')").await.unwrap();
    assert_eq!(client.copy(copy, "8\t1\n9\t3\n").await.unwrap(), "COPY 2");
    client.run("commit").await.unwrap();
    assert_eq!(orphans(&mut client).await, Vec::<String>::new());
    client.run("create table part (id int primary key, above int references part)").await.unwrap();
    assert_eq!(client.copy("copy part from stdin", "1\t2\n2\t\\N\n3\t3\n").await.unwrap(), "COPY 3");
    assert_eq!(client.copy("copy part from stdin", "4\t9\n").await.unwrap_err().code, "23503");
    client.run("begin").await.unwrap();
    client.copy(copy, "20\t2\n").await.unwrap();
    let mut other = client.another();
    other.run("delete from line where book = 2").await.unwrap();
    other.run("delete from book where id = 2").await.unwrap();
    assert_eq!(client.code("commit").await, "40001");
    assert_eq!(orphans(&mut client).await, Vec::<String>::new());
}

#[tokio::test]
async fn two_tables_refer_to_each_other() {
    let mut client = Client::new();
    client.run("create table hen (id int primary key, egg int)").await.unwrap();
    client
        .run("create table egg (id int primary key, hen int references hen deferrable initially deferred)")
        .await
        .unwrap();
    client
        .run("alter table hen add foreign key (egg) references egg on delete cascade deferrable initially deferred")
        .await
        .unwrap();
    client.run("begin").await.unwrap();
    client.run("insert into hen values (1, 1)").await.unwrap();
    client.run("insert into egg values (1, 1)").await.unwrap();
    client.run("commit").await.unwrap();
    assert_eq!(client.code("insert into hen values (2, 2)").await, "23503");
    assert_eq!(client.code("insert into hen values (2, 2); insert into egg values (2, 3)").await, "23503");
    client.run("insert into hen values (2, 2); insert into egg values (2, 2)").await.unwrap();
    client.run("delete from egg where id = 1").await.unwrap();
    assert_eq!(client.column("select id from hen").await, ["2"]);
    assert_eq!(client.code("set constraints all immediate").await, "0A000");
    assert_eq!(client.code("drop table hen").await, "2BP01");
    client.run("drop table hen, egg").await.unwrap();
}

#[tokio::test]
async fn rows_of_a_table_that_refers_to_itself_go_together() {
    let mut client = Client::new();
    client
        .run("create table part (id int primary key, above int references part on delete cascade)")
        .await
        .unwrap();
    client.run("insert into part values (1, 1), (2, 1), (3, 2), (4, 3), (5, null), (6, 5)").await.unwrap();
    client.run("delete from part where id = 2").await.unwrap();
    assert_eq!(client.column("select id from part order by id").await, ["1", "5", "6"]);
    client.run("delete from part").await.unwrap();
    client.run("insert into part values (1, 2), (2, 1)").await.unwrap();
    client.run("delete from part where id = 1").await.unwrap();
    assert_eq!(client.column("select count(*) from part").await, ["0"]);
    client.run("insert into part values (1, null), (2, 1)").await.unwrap();
    client.run("truncate part").await.unwrap();
    assert_eq!(client.column("select count(*) from part").await, ["0"]);
}

#[tokio::test]
async fn the_default_of_a_deleted_key_is_no_way_out() {
    let mut client = books().await;
    client
        .run("create table note (id int primary key, book int default 1 references book on delete set default)")
        .await
        .unwrap();
    client.run("insert into note values (1, 2), (2, 1)").await.unwrap();
    client.run("delete from line").await.unwrap();
    assert_eq!(client.code("delete from book where id = 1").await, "23503");
    client.run("delete from book where id = 2").await.unwrap();
    assert_eq!(client.column("select book from note order by id").await, ["1", "1"]);
}

#[tokio::test]
async fn references_follow_names() {
    let mut client = books().await;
    let shown = "select pg_get_constraintdef(oid) from pg_constraint where contype = 'f'";
    client.run("alter table book rename to tome").await.unwrap();
    client.run("alter table tome rename column id to number").await.unwrap();
    assert_eq!(client.column(shown).await, ["FOREIGN KEY (book) REFERENCES tome(number)"]);
    assert_eq!(client.code("delete from tome where number = 1").await, "23503");
    client.run("alter table line rename column book to tome").await.unwrap();
    client.run("alter table line rename to row").await.unwrap();
    client.run("alter table row drop column id").await.unwrap_err();
    assert_eq!(client.column(shown).await, ["FOREIGN KEY (tome) REFERENCES tome(number)"]);
    assert_eq!(client.code("insert into row values (9, 9)").await, "23503");
    assert_eq!(client.code("delete from tome where number = 1").await, "23503");
    assert_eq!(client.code("alter table tome drop column number").await, "0A000");
    client.run("alter table row drop column tome").await.unwrap();
    client.run("delete from tome where number = 1").await.unwrap();
}

#[tokio::test]
async fn one_statement_reports_its_own_error() {
    let mut client = books().await;
    let error = client.run("insert into line values (1, 1)").await.unwrap_err();
    assert_eq!((&*error.code, error.detail.as_deref()), ("23505", Some("Key (id)=(1) already exists.")));
    let error = client.run("insert into line values (1, 9)").await.unwrap_err();
    assert_eq!(error.code, "23505", "the row itself comes first, as in PostgreSQL");
    let error = client.run("delete from book").await.unwrap_err();
    assert_eq!(error.detail.as_deref(), Some("Key (id)=(1) is still referenced from table \"line\"."));
    assert_eq!(error.about.table.as_deref(), Some("line"));
    assert_eq!(error.about.constraint.as_deref(), Some("line_book_fkey"));
    let error = client
        .run("insert into line values (5, 2); insert into line values (6, 9); insert into line values (7, 2)")
        .await
        .unwrap_err();
    assert_eq!(error.code, "23503");
    assert_eq!(client.column("select count(*) from line").await, ["1"]);
}

/// Many gateways add and delete parents and children at once. In the end each child has its parent.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_child_of_many_sessions_loses_its_parent() {
    let mut client = books().await;
    let mut sessions = tokio::task::JoinSet::new();
    for number in 0..6u64 {
        let mut session = client.another();
        sessions.spawn(async move {
            let (mut seed, mut done) = (number + 1, 0);
            for _ in 0..80 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (id, book) = ((seed >> 33) % 12, (seed >> 40) % 4);
                let statement = match (seed >> 50) % 6 {
                    0 => format!("insert into book values ({book}, null, 'x')"),
                    1 => format!("delete from book where id = {book}"),
                    2 => format!("insert into line values ({id}, {book}) on conflict (id) do update set book = excluded.book"),
                    3 => format!("delete from line where book = {book}"),
                    4 => format!("update line set book = {book} where id = {id}"),
                    _ => format!("begin; delete from line where book = {book}; delete from book where id = {book}; commit"),
                };
                match session.run(&statement).await {
                    Ok(_) => done += 1,
                    Err(error) => {
                        assert!(["23503", "23505", "40001"].contains(&&*error.code), "{statement}: {error:?}");
                        session.run("rollback").await.unwrap();
                    }
                }
            }
            done
        });
    }
    let mut done = 0;
    while let Some(ended) = sessions.join_next().await {
        done += ended.unwrap();
    }
    assert!(done > 100, "{done} statements succeeded");
    assert_eq!(orphans(&mut client).await, Vec::<String>::new());
}

/// A check belongs to the steps before a savepoint. ROLLBACK TO takes back neither its read nor its failure.
#[tokio::test]
async fn a_savepoint_comes_after_the_checks_before_it() {
    let mut one = books().await;
    let message = "begin; insert into line values (2, 7); savepoint s; insert into book values (7, 'i7', 'Seven'); \
                   rollback to s; commit";
    assert_eq!(one.code(message).await, "23503");
    one.run("rollback").await.unwrap();
    assert_eq!(orphans(&mut one).await, Vec::<String>::new());
    let mut other = one.another();
    one.run("begin; insert into line values (2, 2); savepoint s; insert into line values (3, 1)")
        .await
        .unwrap();
    one.run("rollback to s").await.unwrap();
    other.run("delete from book where id = 2").await.unwrap();
    assert_eq!(one.code("commit").await, "40001");
    assert_eq!(orphans(&mut one).await, Vec::<String>::new());
}

/// Children follow their own parent, although parents take over each other's keys.
#[tokio::test]
async fn children_follow_keys_that_are_exchanged() {
    let mut one = Client::new();
    one.run("create table p (id int primary key, code int unique)").await.unwrap();
    one.run("create table c (id int primary key, code int references p (code) on update cascade)")
        .await
        .unwrap();
    one.run("insert into p values (1, 1), (2, 2), (3, 3)").await.unwrap();
    one.run("insert into c values (1, 1), (2, 2), (3, 3)").await.unwrap();
    one.run("update p set code = 3 - code where id < 3").await.unwrap();
    assert_eq!(one.column("select code from c order by id").await, ["2", "1", "3"]);
    one.run("update p set code = code + 1").await.unwrap();
    assert_eq!(one.column("select code from p order by id").await, ["3", "2", "4"]);
    assert_eq!(one.column("select code from c order by id").await, ["3", "2", "4"]);
}

#[tokio::test]
async fn an_action_that_the_partition_column_cannot_follow_is_refused_at_once() {
    let mut one = books().await;
    for action in ["set null", "set default"] {
        let create = format!("create table note (book int references book on delete {action}, text text)");
        assert_eq!(one.code(&create).await, "0A000", "{action}");
    }
    one.run("create table note (book int references book on delete cascade, text text)").await.unwrap();
}

//! Tests unique keys other than the primary key: sessions side by side, blocks, COPY, and repeated requests.

use quorate_sql::session::Status;

use crate::statements::{Client, Done};

/// Returns a session with two people. Each person has a mail address, which is unique.
async fn people() -> Client {
    let mut client = Client::new();
    client.run("create table person (id serial primary key, mail text unique, age int)").await.unwrap();
    client.run("insert into person (mail, age) values ('a@x', 1), ('b@x', 2)").await.unwrap();
    client
}

/// Checks that the keys of the index are exactly those of the table.
async fn check(client: &mut Client) {
    let kept = client.column("select mail from person where mail is not null order by mail").await;
    for mail in &kept {
        let again = format!("insert into person (mail) values ('{mail}')");
        assert_eq!(client.code(&again).await, "23505", "{mail}");
    }
    for mail in ["a@x", "b@x", "c@x", "d@x"].into_iter().filter(|mail| !kept.contains(&(*mail).to_owned())) {
        client.run(&format!("begin; insert into person (mail) values ('{mail}'); rollback")).await.unwrap();
    }
}

#[tokio::test]
async fn two_blocks_cannot_take_the_same_key() {
    let mut one = people().await;
    let mut other = one.another();
    one.run("begin").await.unwrap();
    other.run("begin").await.unwrap();
    one.run("insert into person values (10, 'c@x', 1)").await.unwrap();
    other.run("insert into person values (11, 'c@x', 1)").await.unwrap();
    one.run("commit").await.unwrap();
    // The client received INSERT 0 1, which the row of the other session has made wrong.
    assert_eq!(other.code("commit").await, "40001");
    assert_eq!(one.column("select id from person where mail = 'c@x'").await, ["10"]);
    check(&mut one).await;
}

#[tokio::test]
async fn a_block_that_changes_a_key_meets_another_change_of_it() {
    let mut one = people().await;
    let mut other = one.another();
    one.run("begin").await.unwrap();
    one.run("update person set mail = 'c@x' where id = 1").await.unwrap();
    other.run("update person set mail = 'd@x' where id = 1").await.unwrap();
    assert_eq!(one.code("commit").await, "40001");
    assert_eq!(one.column("select mail from person order by id").await, ["d@x", "b@x"]);
    check(&mut one).await;
    one.run("begin").await.unwrap();
    one.run("delete from person where age < 10").await.unwrap();
    other.run("insert into person (mail, age) values ('c@x', 3)").await.unwrap();
    assert_eq!(one.code("commit").await, "40001", "the new row would have been deleted, and its key kept");
    check(&mut one).await;
}

#[tokio::test]
async fn rows_exchange_their_keys() {
    let mut client = people().await;
    client
        .run("update person set mail = case mail when 'a@x' then 'b@x' else 'a@x' end where id in (1, 2)")
        .await
        .unwrap();
    assert_eq!(client.column("select mail from person order by id").await, ["b@x", "a@x"]);
    check(&mut client).await;
}

#[tokio::test]
async fn statements_that_come_together_are_one_transaction() {
    let mut client = people().await;
    let done = client
        .run(
            "insert into person values (3, 'c@x', 3); update person set mail = 'd@x' where mail = 'a@x'; \
             delete from person where id = 2; insert into person values (4, 'a@x', 4) returning mail",
        )
        .await
        .unwrap();
    assert!(
        matches!(&done[..], [Done::Count(1), Done::Count(1), Done::Count(1), Done::Rows(rows, 1)] if rows.len() == 1),
        "each statement has one result: {done:?}"
    );
    assert_eq!(client.column("select mail from person order by id").await, ["d@x", "c@x", "a@x"]);
    check(&mut client).await;
    let error = client
        .run("insert into person values (5, 'e@x', 5); insert into person values (6, 'c@x', 6)")
        .await
        .unwrap_err();
    assert_eq!(error.code, "23505");
    assert_eq!(
        error.detail.as_deref(),
        Some("Key (mail)=(c@x) already exists. This was statement 2 of the transaction."),
        "the steps for keys are not counted"
    );
    assert_eq!(error.about.table.as_deref(), Some("person"));
    assert_eq!(error.about.constraint.as_deref(), Some("person_mail_key"));
    assert_eq!(client.column("select count(*) from person").await, ["3"]);
    assert_eq!(client.status(), Status::Idle);
}

#[tokio::test]
async fn one_statement_names_no_number_of_a_statement() {
    let mut client = people().await;
    let error = client.run("insert into person values (5, 'a@x', 5)").await.unwrap_err();
    assert_eq!(error.detail.as_deref(), Some("Key (mail)=(a@x) already exists."));
    assert_eq!(error.about.table.as_deref(), Some("person"));
}

#[tokio::test]
async fn copied_rows_have_their_keys() {
    let mut client = people().await;
    let copy = "copy person (id, mail) from stdin";
    assert_eq!(client.copy(copy, "105\tc@x\n106\t\\N\n107\t\\N\n").await.unwrap(), "COPY 3");
    check(&mut client).await;
    for data in ["108\td@x\n109\tc@x\n", "108\td@x\n109\td@x\n"] {
        let error = client.copy(copy, data).await.unwrap_err();
        assert_eq!((&*error.code, error.about.constraint.as_deref()), ("23505", Some("person_mail_key")));
        assert_eq!(client.status(), Status::Idle);
    }
    assert_eq!(client.column("select count(*) from person").await, ["5"]);
    check(&mut client).await;
    client.run("begin").await.unwrap();
    assert_eq!(client.copy(copy, "108\td@x\n").await.unwrap(), "COPY 1");
    assert_eq!(client.code("insert into person values (9, 'd@x', 1)").await, "23505");
    client.run("rollback").await.unwrap();
    check(&mut client).await;
}

#[tokio::test]
async fn a_repeated_insert_returns_the_numbers_that_are_stored() {
    let mut client = people().await;
    let name = "00000000000000000000000000000001-7";
    let insert = "insert into person (mail) values ('c@x'), ('d@x') returning id";
    for _ in 0..3 {
        client.run(&format!("set quorate.request_id = '{name}'")).await.unwrap();
        assert_eq!(client.column(insert).await, ["3", "4"]);
    }
    assert_eq!(client.column("select count(*) from person").await, ["4"]);
    client.run(&format!("set quorate.request_id = '{name}'")).await.unwrap();
    assert_eq!(client.code("insert into person (mail) values ('e@x') returning id").await, "22023");
    client.run("reset quorate.request_id").await.unwrap();
    check(&mut client).await;
}

#[tokio::test]
async fn a_dropped_table_takes_its_keys_with_it() {
    let mut client = people().await;
    client.run("drop table person").await.unwrap();
    assert_eq!(client.column("select count(*) from pg_class where relname like 'person%'").await, ["0"]);
    client.run("create table person (id serial primary key, mail text unique)").await.unwrap();
    client.run("insert into person (mail) values ('a@x')").await.unwrap();
    check(&mut client).await;
}

/// Many gateways add, change and delete rows at once. In the end each key belongs to one row.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_keys_of_many_sessions_stay_those_of_the_table() {
    let client = people().await;
    let mut sessions = tokio::task::JoinSet::new();
    for number in 0..6u64 {
        let mut session = client.another();
        sessions.spawn(async move {
            let mut seed = number + 1;
            for _ in 0..60 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (id, mail) = ((seed >> 33) % 8, ["a@x", "b@x", "c@x", "d@x"][(seed >> 40) as usize % 4]);
                let statement = match (seed >> 50) % 5 {
                    0 => format!("insert into person values ({id}, '{mail}', 1)"),
                    1 => format!("update person set mail = '{mail}' where id = {id}"),
                    2 => format!("delete from person where id = {id}"),
                    3 => format!(
                        "insert into person values ({id}, '{mail}', 1) on conflict (mail) do update set age = person.age + 1"
                    ),
                    _ => format!("begin; delete from person where mail = '{mail}'; \
                                  insert into person values ({id}, '{mail}', 2); commit"),
                };
                if let Err(error) = session.run(&statement).await {
                    assert!(["23505", "40001"].contains(&&*error.code), "{statement}: {error:?}");
                    session.run("rollback").await.unwrap();
                }
            }
        });
    }
    while let Some(ended) = sessions.join_next().await {
        ended.unwrap();
    }
    let mut client = client;
    let mails = client.column("select mail from person where mail is not null order by mail").await;
    let mut distinct = mails.clone();
    distinct.dedup();
    assert_eq!(mails, distinct);
    check(&mut client).await;
}

/// A row must not take a key that another row still has, also if both change in one statement.
#[tokio::test]
async fn a_change_on_conflict_takes_no_key_of_another_row() {
    let mut one = Client::new();
    one.run("create table t (id int primary key, k text unique, n text)").await.unwrap();
    one.run("insert into t values (1, 'a', ''), (2, 'b', '')").await.unwrap();
    let chain =
        "insert into t values (8, 'a', 'b'), (9, 'b', 'c') on conflict (k) do update set k = excluded.n";
    assert_eq!(one.code(chain).await, "23505");
    assert_eq!(one.column("select k from t order by id").await, ["a", "b"]);
    let free =
        "insert into t values (9, 'b', 'c'), (8, 'a', 'b') on conflict (k) do update set k = excluded.n";
    one.run(free).await.unwrap();
    assert_eq!(one.column("select k from t order by id").await, ["b", "c"]);
    for (key, code) in [("a", None), ("b", Some("23505")), ("c", Some("23505"))] {
        let outcome = one.run(&format!("begin; insert into t values (7, '{key}'); rollback")).await;
        assert_eq!(outcome.err().map(|error| error.code.clone()), code.map(Into::into), "{key}");
        let _ = one.run("rollback").await;
    }
}

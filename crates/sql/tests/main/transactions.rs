//! Tests transaction blocks, alone and of two sessions side by side.

use quorate_sql::session::Status;

use crate::statements::Client;

/// Returns a session with accounts 1 to 8, each with 100 cents.
async fn accounts() -> Client {
    let mut client = Client::new();
    client.run("create table acct (id int primary key, cents bigint not null, owner text)").await.unwrap();
    let rows: Vec<String> = (1..=8).map(|id| format!("({id}, 100, 'o{}')", id % 2)).collect();
    client.run(&format!("insert into acct values {}", rows.join(", "))).await.unwrap();
    client
}

/// Returns the first column of the last statement's rows, as text.
async fn column(client: &mut Client, text: &str) -> Vec<String> {
    client.rows(text).await.into_iter().map(|row| row[0].clone().unwrap_or_default()).collect()
}

async fn cents(client: &mut Client, id: u32) -> String {
    column(client, &format!("select cents from acct where id = {id}")).await.remove(0)
}

const TRANSFER: &str =
    "update acct set cents = cents - 50 where id = 1; update acct set cents = cents + 50 where id = 2";

#[tokio::test]
async fn a_transfer_is_visible_completely_or_not_at_all() {
    let mut one = accounts().await;
    let mut other = one.another();
    one.run("begin").await.unwrap();
    one.run(TRANSFER).await.unwrap();
    assert_eq!(cents(&mut other, 1).await, "100", "nothing is in the cluster before COMMIT");
    assert_eq!(one.status(), Status::Block);
    one.run("commit").await.unwrap();
    assert_eq!(one.status(), Status::Idle);
    assert_eq!((cents(&mut other, 1).await, cents(&mut other, 2).await), ("50".into(), "150".into()));
    one.run("begin").await.unwrap();
    one.run(TRANSFER).await.unwrap();
    one.run("rollback").await.unwrap();
    assert_eq!((cents(&mut other, 1).await, cents(&mut other, 2).await), ("50".into(), "150".into()));
}

#[tokio::test]
async fn a_block_reads_its_own_writes() {
    let mut client = accounts().await;
    for level in ["read committed", "serializable"] {
        client.run(&format!("begin isolation level {level}")).await.unwrap();
        client.run("insert into acct values (9, 1, 'o1')").await.unwrap();
        client.run("update acct set cents = 7 where id = 3").await.unwrap();
        client.run("delete from acct where id = 4").await.unwrap();
        client
            .run("insert into acct values (3, 0, 'x') on conflict (id) do update set cents = acct.cents + 1")
            .await
            .unwrap();
        assert_eq!(cents(&mut client, 9).await, "1", "{level}: by key");
        assert_eq!(cents(&mut client, 3).await, "8", "{level}: two writes of one row");
        assert_eq!(column(&mut client, "select count(*) from acct").await, ["8"], "{level}: aggregates");
        assert_eq!(
            column(&mut client, "select owner || ':' || sum(cents) from acct group by owner order by owner")
                .await,
            ["o0:300", "o1:309"],
            "{level}: groups"
        );
        assert_eq!(
            column(&mut client, "select id from acct order by cents, id limit 3").await,
            ["9", "3", "1"]
        );
        assert_eq!(column(&mut client, "select id from acct where cents < 50 order by id").await, ["3", "9"]);
        let returned =
            column(&mut client, "update acct set cents = cents * 2 where cents < 50 returning cents").await;
        assert_eq!(returned.len(), 2);
        assert_eq!(
            column(&mut client, "insert into acct values (10, 5, null) returning cents + 1").await,
            ["6"]
        );
        client.run("truncate acct").await.unwrap();
        assert_eq!(column(&mut client, "select count(*) from acct").await, ["0"]);
        client.run("rollback").await.unwrap();
        assert_eq!(column(&mut client, "select count(*), sum(cents) from acct").await, ["8"]);
    }
}

#[tokio::test]
async fn a_duplicate_key_fails_at_its_statement() {
    let mut client = accounts().await;
    client.run("begin; insert into acct values (9, 1, null)").await.unwrap();
    assert_eq!(client.code("insert into acct values (9, 2, null)").await, "23505");
    assert_eq!(client.status(), Status::Failed);
    assert_eq!(client.code("select 1").await, "25P02");
    assert_eq!(client.code("commit").await, "00000");
    assert_eq!(column(&mut client, "select count(*) from acct").await, ["8"]);
    // The other session commits a row with the key first.
    let mut other = client.another();
    client.run("begin; insert into acct values (9, 1, null)").await.unwrap();
    other.run("insert into acct values (9, 2, null)").await.unwrap();
    let error = client.run("commit").await.unwrap_err();
    assert_eq!((&*error.code, client.status()), ("40001", Status::Idle));
    assert_eq!(error.hint.as_deref(), Some("The transaction might succeed if retried."));
    assert_eq!(cents(&mut client, 9).await, "2");
}

/// The results that a block's client has received come from the earlier table, so the block has to be
/// repeated.
#[tokio::test]
async fn a_block_whose_table_is_altered_has_to_be_repeated() {
    let mut one = accounts().await;
    let mut other = one.another();
    for level in ["read committed", "repeatable read", "serializable"] {
        for (statement, column) in [(TRANSFER, "a"), ("select * from acct where id = 1", "b")] {
            if level == "read committed" && statement != TRANSFER {
                // At READ COMMITTED, COMMIT does not compare the result of a read.
                continue;
            }
            one.run(&format!("begin isolation level {level}")).await.unwrap();
            one.run(statement).await.unwrap();
            other.run(&format!("alter table acct add column {column} int")).await.unwrap();
            let within = one.run("update acct set cents = 0 where id = 3").await;
            let error = match within {
                Ok(_) => one.run("commit").await.unwrap_err(),
                Err(error) => {
                    one.run("rollback").await.unwrap();
                    error
                }
            };
            assert_eq!(error.code, "40001", "{level}: {statement}: {}", error.message);
            assert_eq!(error.hint.as_deref(), Some("The transaction might succeed if retried."));
            assert_eq!((cents(&mut one, 1).await, cents(&mut one, 3).await), ("100".into(), "100".into()));
            other.run(&format!("alter table acct drop column {column}")).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_rollback_to_a_savepoint_undoes_the_later_statements() {
    let mut client = accounts().await;
    for level in ["read committed", "repeatable read", "serializable"] {
        client
            .run(&format!("begin isolation level {level}; update acct set cents = 1 where id = 1"))
            .await
            .unwrap();
        client.run("savepoint a; update acct set cents = 2 where id = 1; savepoint b").await.unwrap();
        assert_eq!(client.code("insert into acct values (2, 0, null)").await, "23505", "{level}");
        client.run("rollback to b").await.unwrap();
        assert_eq!(cents(&mut client, 1).await, "2", "{level}");
        client.run("update acct set cents = 3 where id = 1; rollback to a").await.unwrap();
        assert_eq!(cents(&mut client, 1).await, "1", "{level}");
        client.run("update acct set cents = cents + 4 where id = 1; rollback to a; release a").await.unwrap();
        client.run("update acct set cents = cents + 10 where id = 1; commit").await.unwrap();
        assert_eq!(cents(&mut client, 1).await, "11", "{level}");
    }
}

/// The client received the error of a duplicate key within a part of the block that it then rolled back. At
/// a strict level, the error must still occur when the block commits.
#[tokio::test]
async fn a_received_error_must_recur_at_commit_at_a_strict_level() {
    for (level, expected) in [("read committed", "00000"), ("serializable", "40001")] {
        let mut client = accounts().await;
        let mut other = client.another();
        client.run(&format!("begin isolation level {level}; savepoint s")).await.unwrap();
        assert_eq!(client.code("insert into acct values (2, 0, null)").await, "23505");
        client.run("rollback to s; update acct set cents = 0 where id = 1").await.unwrap();
        other.run("delete from acct where id = 2").await.unwrap();
        assert_eq!(client.code("commit").await, expected, "{level}");
        assert_eq!(cents(&mut client, 1).await, if expected == "00000" { "0" } else { "100" });
    }
}

#[tokio::test]
async fn a_row_locked_for_update_must_be_unchanged_at_commit() {
    for lock in ["for update", "for share", "for no key update", "for key share of acct"] {
        let mut client = accounts().await;
        let mut other = client.another();
        client.run("begin").await.unwrap();
        let read = format!("select cents from acct where id = 1 {lock}");
        assert_eq!(column(&mut client, &read).await, ["100"]);
        other.run("update acct set cents = 70 where id = 1").await.unwrap();
        // The program computes 100 - 10 by itself, which would lose the update of the other session.
        let update = client.code("update acct set cents = 90 where id = 1").await;
        let commit = client.code("commit").await;
        assert!(update == "40001" || commit == "40001", "{lock}: {update}, {commit}");
        assert_eq!(cents(&mut other, 1).await, "70", "{lock}");
        assert_eq!(column(&mut client, &read).await, ["70"], "outside of a block it is a plain read");
    }
}

/// A block reads a row that it has updated. COMMIT executes the update again, and the row must then have the
/// value that the client has read, also at READ COMMITTED.
#[tokio::test]
async fn rows_that_a_block_wrote_and_read_must_be_unchanged_at_commit() {
    let mut client = accounts().await;
    let mut other = client.another();
    client.run("begin; update acct set cents = cents - 50 where id = 1").await.unwrap();
    assert_eq!(cents(&mut client, 1).await, "50");
    other.run("update acct set cents = 60 where id = 1").await.unwrap();
    assert_eq!(client.code("commit").await, "40001");
    assert_eq!(cents(&mut client, 1).await, "60");
    // Without the read, each client received only a number of rows, and both updates take effect.
    client.run("begin; update acct set cents = cents - 50 where id = 1").await.unwrap();
    other.run("update acct set cents = 90 where id = 1").await.unwrap();
    client.run("commit").await.unwrap();
    assert_eq!(cents(&mut client, 1).await, "40");
}

#[tokio::test]
async fn write_skew_is_refused_at_serializable_alone() {
    for (level, expected) in [("read committed", "00000"), ("serializable", "40001")] {
        let mut one = accounts().await;
        let mut other = one.another();
        for client in [&mut one, &mut other] {
            client.run(&format!("begin isolation level {level}")).await.unwrap();
            assert_eq!(column(client, "select sum(cents) from acct where id in (1, 2)").await, ["200"]);
        }
        one.run("update acct set cents = cents - 150 where id = 1").await.unwrap();
        other.run("update acct set cents = cents - 150 where id = 2").await.unwrap();
        one.run("commit").await.unwrap();
        assert_eq!(other.code("commit").await, expected, "{level}");
    }
}

#[tokio::test]
async fn a_phantom_is_refused_at_serializable() {
    let mut one = accounts().await;
    let mut other = one.another();
    one.run("begin; set transaction isolation level serializable").await.unwrap();
    assert_eq!(column(&mut one, "select id from acct where owner = 'new'").await, Vec::<String>::new());
    other.run("insert into acct values (20, 0, 'new')").await.unwrap();
    // The other session has changed a result of this block, so the block fails at its next statement.
    let error = one.run("insert into acct values (21, 0, 'new')").await.unwrap_err();
    assert_eq!((&*error.code, one.status()), ("40001", Status::Failed));
    one.run("rollback").await.unwrap();
    // A block that only reads is checked at COMMIT.
    one.run("begin isolation level serializable; select count(*) from acct").await.unwrap();
    assert_eq!(cents(&mut one, 1).await, "100");
    other.run("delete from acct where id = 20").await.unwrap();
    assert_eq!(one.code("commit").await, "40001");
    assert_eq!(one.status(), Status::Idle);
    one.run("begin isolation level serializable; select count(*) from acct").await.unwrap();
    other.run("delete from acct where id = 8").await.unwrap();
    one.run("commit").await.unwrap();
}

#[tokio::test]
async fn cursors_and_copies_belong_to_their_block() {
    let mut client = accounts().await;
    let mut other = client.another();
    client.run("begin; update acct set cents = 5 where id = 5").await.unwrap();
    client.run("declare c cursor for select cents from acct where id = 5").await.unwrap();
    assert_eq!(column(&mut client, "fetch all from c").await, ["5"]);
    let copy = "copy acct from stdin";
    assert_eq!(client.copy(copy, "30\t1\tx\n31\t2\ty\n").await.unwrap(), "COPY 2");
    assert_eq!(column(&mut client, "select count(*) from acct").await, ["10"]);
    assert_eq!(column(&mut other, "select count(*) from acct").await, ["8"]);
    client.run("rollback").await.unwrap();
    assert_eq!(column(&mut client, "select count(*) from acct").await, ["8"]);
    client.run("begin; savepoint s").await.unwrap();
    client.copy(copy, "30\t1\tx\n31\t2\ty\n").await.unwrap();
    client.run("rollback to s; update acct set cents = 6 where id = 5").await.unwrap();
    client.copy(copy, "32\t3\tz\n").await.unwrap();
    client.run("update acct set cents = cents + 1 where id = 32; commit").await.unwrap();
    assert_eq!(column(&mut other, "select id || ':' || cents from acct where id > 8").await, ["32:4"]);
    client.run("begin").await.unwrap();
    assert_eq!(client.copy(copy, "32\t3\tz\n").await.unwrap_err().code, "23505");
    client.run("rollback").await.unwrap();
}

#[tokio::test]
async fn isolation_levels_and_modes_behave_as_in_postgresql() {
    let mut client = accounts().await;
    let show = "show transaction isolation level";
    assert_eq!(column(&mut client, show).await, ["read committed"]);
    client.run("begin isolation level repeatable read").await.unwrap();
    assert_eq!(column(&mut client, show).await, ["repeatable read"]);
    client.run("set transaction isolation level serializable; select 1").await.unwrap();
    assert_eq!(
        column(&mut client, "select current_setting('transaction_isolation')").await,
        ["serializable"]
    );
    assert_eq!(client.code("set transaction isolation level read committed").await, "25001");
    client.run("rollback; begin; savepoint s").await.unwrap();
    assert_eq!(client.code("set transaction_isolation = 'serializable'").await, "25001");
    client
        .run("rollback; set session characteristics as transaction isolation level serializable")
        .await
        .unwrap();
    assert_eq!(column(&mut client, show).await, ["serializable"]);
    client.run("begin").await.unwrap();
    assert_eq!(column(&mut client, show).await, ["serializable"]);
    client.run("rollback; set default_transaction_isolation = 'READ UNCOMMITTED'").await.unwrap();
    assert_eq!(column(&mut client, show).await, ["read uncommitted"]);
    assert_eq!(client.code("set default_transaction_isolation = 'snapshot'").await, "22023");
    client.run("begin read only; select * from acct").await.unwrap();
    assert_eq!(client.code("select * from acct for update").await, "25006");
    client.run("rollback").await.unwrap();
    for (sql, state) in [
        ("select * from acct for update nowait", "00000"),
        ("select * from acct for update skip locked", "00000"),
        ("select count(*) from acct for update", "0A000"),
        ("select distinct owner from acct for share", "0A000"),
        ("select owner from acct group by owner for update", "0A000"),
        ("select * from acct a for update of acct", "42P01"),
        ("select * from (select * from acct for update) a", "0A000"),
        ("select * from acct a for update of a", "00000"),
        ("begin; set local quorate.read = 'basic'; select * from acct", "00000"),
        ("update acct set cents = 1 where id = 1", "00000"),
        ("select * from acct", "55000"),
        (
            "rollback; begin isolation level serializable; set local quorate.read = 'basic'; select * from acct",
            "55000",
        ),
        ("rollback", "00000"),
    ] {
        assert_eq!(client.code(sql).await, state, "{sql}");
    }
}

#[tokio::test]
async fn blocks_are_bounded() {
    let mut client = accounts().await;
    client.run("begin").await.unwrap();
    for _ in 0..1_000 {
        client.run("select 1 from acct where id = 1 for update").await.unwrap();
    }
    assert_eq!(client.code("select 1 from acct where id = 1 for update").await, "54000");
    client.run("rollback; begin; savepoint s").await.unwrap();
    let long = "x".repeat(1 << 20);
    for number in 0..15 {
        let sql = format!("update acct set owner = '{long}' where id = {}", number % 8 + 1);
        client.run(&sql).await.unwrap();
    }
    assert_eq!(client.code(&format!("insert into acct values (9, 1, '{long}')")).await, "54000");
    client.run("rollback to s; update acct set cents = 0; commit").await.unwrap();
    assert_eq!(column(&mut client, "select sum(cents) from acct").await, ["0"]);
}

/// A block has one name. Writes in the block do not use it up, and COMMIT does.
#[tokio::test]
async fn a_request_id_covers_all_writes_of_a_block() {
    let mut client = accounts().await;
    let id = "5e0c1d2f3a4b5c6d7e8f9a0b1c2d3e4f-1";
    let name = format!("set quorate.request_id = '{id}'");
    for _ in 0..2 {
        client.run(&format!("{name}; begin")).await.unwrap();
        client.run(TRANSFER).await.unwrap();
        assert_eq!(column(&mut client, "show quorate.request_id").await, [id]);
        client.run("commit").await.unwrap();
        assert_eq!(column(&mut client, "show quorate.request_id").await, [""]);
        assert_eq!(cents(&mut client, 1).await, "50", "the second COMMIT is answered from memory");
    }
    client.run(&format!("{name}; begin; update acct set cents = 0 where id = 1")).await.unwrap();
    assert_eq!(client.code("commit").await, "22023");
    assert_eq!((client.status(), cents(&mut client, 1).await), (Status::Idle, "50".to_owned()));
}

/// The client uses a number that an UPDATE returned as a key, and another block has taken the number
/// meanwhile. The client has to repeat its block. An error about a duplicate key would not say that.
#[tokio::test]
async fn a_failure_based_on_an_outdated_result_is_a_conflict() {
    let mut client = Client::new();
    client.run("create table counter (id int primary key, next int)").await.unwrap();
    client.run("create table numbered (id int primary key)").await.unwrap();
    client.run("insert into counter values (1, 1)").await.unwrap();
    let mut other = client.another();
    let take = "update counter set next = next + 1 where id = 1 returning next - 1";
    client.run("begin").await.unwrap();
    assert_eq!(client.rows(take).await, [[Some("1".to_owned())]]);
    other.run("begin").await.unwrap();
    assert_eq!(other.rows(take).await, [[Some("1".to_owned())]]);
    other.run("insert into numbered values (1)").await.unwrap();
    other.run("commit").await.unwrap();
    assert_eq!(client.code("insert into numbered values (1)").await, "40001");
    client.run("rollback").await.unwrap();

    // A failure that does not depend on an outdated result keeps its own error.
    client.run("begin").await.unwrap();
    assert_eq!(client.rows(take).await, [[Some("2".to_owned())]]);
    assert_eq!(client.code("insert into numbered values (1)").await, "23505");
    client.run("rollback").await.unwrap();
}

#[tokio::test]
async fn a_failed_block_refuses_statements_before_it_looks_up_names() {
    let mut client = Client::new();
    client.run("begin").await.unwrap();
    assert_eq!(client.code("select 1/0").await, "22012");
    assert_eq!(client.code("select none from nowhere").await, "25P02");
    assert_eq!(client.code("selec 1").await, "42601");
    client.run("rollback").await.unwrap();
    assert_eq!(client.code("select none from nowhere").await, "42P01");
}

/// Statements that come together run up to a BEGIN. If one of them fails, the client has begun no block.
#[tokio::test]
async fn a_failure_before_begin_opens_no_block() {
    let mut client = Client::new();
    client.run("create table t (id int primary key)").await.unwrap();
    client.run("insert into t values (1)").await.unwrap();
    assert_eq!(client.code("insert into t values (1); begin; insert into t values (2)").await, "23505");
    assert_eq!(client.status(), Status::Idle);
    client.run("insert into t values (3); begin; insert into t values (4)").await.unwrap();
    assert_eq!(client.status(), Status::Block);
    client.run("commit").await.unwrap();
    assert_eq!(client.rows("select id from t order by id").await.len(), 3);
}

/// A definition takes effect at once, and ends the transaction of the statements before it in a message.
#[tokio::test]
async fn a_definition_ends_the_transaction_of_the_statements_before_it() {
    let mut client = Client::new();
    client.run("create table t (id int primary key)").await.unwrap();
    for definition in [
        "create table u (id int)",
        "drop table u",
        "create sequence s",
        "drop sequence s",
        "create index i on t (id)",
        "drop index i",
    ] {
        let message = format!("insert into t values (1); {definition}; insert into t values (2), (2)");
        assert_eq!(client.code(&message).await, "23505", "{definition}");
        assert_eq!(column(&mut client, "delete from t returning id").await, ["1"], "{definition}");
    }
}

#[tokio::test]
async fn nowait_and_skip_locked_look_at_the_locks_of_other_blocks() {
    let mut one = accounts().await;
    let mut two = one.at_same_gateway();
    one.run("begin").await.unwrap();
    one.run("select * from acct where id = 1 for update").await.unwrap();
    two.run("begin").await.unwrap();
    assert_eq!(two.code("select * from acct where id = 1 for update nowait").await, "55P03");
    two.run("rollback; begin").await.unwrap();
    assert_eq!(two.code("select * from acct for share nowait").await, "55P03");
    two.run("rollback; begin").await.unwrap();
    assert_eq!(column(&mut two, "select id from acct where id = 2 for update nowait").await, ["2"]);
    assert_eq!(column(&mut two, "select id from acct where id = 1 for update skip locked").await, [""; 0]);
    // A block leaves out the rows that another block has locked, and returns the rows that it has locked
    // itself.
    let next = "select id, owner from acct where cents = 100 order by id limit 2 for update skip locked";
    assert_eq!(column(&mut two, next).await, ["2", "3"]);
    assert_eq!(column(&mut one, next).await, ["1", "4"]);
    two.run("update acct set cents = 0 where id in (2, 3)").await.unwrap();
    assert_eq!(column(&mut two, next).await, ["5", "6"], "a block sees its own writes");
    assert_eq!(column(&mut two, &next.replace("limit 2", "limit 1 offset 1")).await, ["6"]);
    // A statement outside of a block locks nothing.
    let mut three = one.at_same_gateway();
    assert_eq!(column(&mut three, next).await, ["7", "8"]);
    assert_eq!(three.code("select * from acct where id = 5 for update nowait").await, "55P03");
    for client in [&mut two, &mut one] {
        client.run("commit").await.unwrap();
    }
    assert_eq!(column(&mut three, next).await, ["1", "4"], "the end of a block releases its locks");
    three.run("create table bare (n int); insert into bare values (1)").await.unwrap();
    assert_eq!(three.code("select n from bare for update skip locked").await, "0A000");
}

/// Workers take jobs from one table. No job is taken twice, and no worker fails.
#[tokio::test]
async fn workers_with_skip_locked_take_different_jobs() {
    let mut client = accounts().await;
    client.run("create table job (id int primary key, worker int)").await.unwrap();
    let jobs: Vec<String> = (0..60).map(|id| format!("({id})")).collect();
    client.run(&format!("insert into job (id) values {}", jobs.join(", "))).await.unwrap();
    let mut workers = Vec::new();
    for worker in 0..6 {
        let mut client = client.at_same_gateway();
        workers.push(tokio::spawn(async move {
            let mut taken = 0;
            loop {
                client.run("begin").await.unwrap();
                let take =
                    "select id from job where worker is null order by id limit 1 for update skip locked";
                let found = column(&mut client, take).await;
                let Some(id) = found.first() else {
                    client.run("commit").await.unwrap();
                    return taken;
                };
                client.run(&format!("update job set worker = {worker} where id = {id}")).await.unwrap();
                client.run("commit").await.unwrap();
                taken += 1;
                tokio::task::yield_now().await;
            }
        }));
    }
    let mut taken = 0;
    for worker in workers {
        taken += worker.await.unwrap();
    }
    assert_eq!(taken, 60);
    assert_eq!(column(&mut client, "select count(*) from job where worker is null").await, ["0"]);
}

/// Blocks read a counter for update and write the next value. They follow one another, and none fails.
#[tokio::test]
async fn blocks_on_one_row_take_turns() {
    let mut client = accounts().await;
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let mut client = client.at_same_gateway();
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                client.run("begin").await.unwrap();
                let read = "select cents from acct where id = 1 for update";
                let cents: u64 = column(&mut client, read).await[0].parse().unwrap();
                tokio::task::yield_now().await;
                client.run(&format!("update acct set cents = {} where id = 1", cents + 1)).await.unwrap();
                client.run("commit").await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(cents(&mut client, 1).await, "180");
    // A wait ends after lock_timeout, and the block goes on without the lock.
    let mut other = client.at_same_gateway();
    other.run("begin").await.unwrap();
    other.run("update acct set cents = 0 where id = 1").await.unwrap();
    client
        .run("set lock_timeout = '20ms'; begin; update acct set cents = 1 where id = 1; commit")
        .await
        .unwrap();
    client.run("begin").await.unwrap();
    client.run("update acct set cents = 2 where id = 1").await.unwrap();
    client.run("commit").await.unwrap();
    assert_eq!(cents(&mut client, 1).await, "2");
}

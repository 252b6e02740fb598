//! Backups of clusters in this process: a backup holds one position, another cluster can restore it, and a
//! failed backup leaves nothing.

use std::{
    fs,
    num::NonZeroU64,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use quorate::{Db, Error, Local, Value, Wait, backup};

fn cluster(storage: usize, replicas: u8) -> (Local, Db) {
    let cluster = Local::builder().storage(storage).replicas(replicas).start().wait().unwrap();
    let db = quorate::connect(cluster.addresses()).wait().unwrap();
    (cluster, db)
}

fn all(db: &Db, text: &str) -> Vec<Vec<Value>> {
    db.query(text).wait().unwrap().map(|row| row.values().to_vec()).collect()
}

fn number(db: &Db, text: &str) -> i64 {
    db.query(text).wait().unwrap().next().unwrap().get(0).unwrap()
}

fn in_folder(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

/// Creates tables with all types, defaults, keys and ways of spreading rows.
fn fill(db: &Db) {
    for text in [
        "create table kinds (id int primary key, b bool, s smallint, l bigint, f double precision, n numeric(12,2), t text default \
         'none' not null, d date, ts timestamp, tz timestamptz)",
        "insert into kinds values (1, true, -3, 9223372036854775807, 'NaN', 12.50, 'Zürich', '2013-02-28', '2013-02-28 12:00', \
         'infinity'), (2, null, null, null, '-infinity', null, '', null, null, null)",
        "create table \"Spread Out\" (k int, v text) with (partition_by = 'range(k)')",
        "create table nothing (id int primary key)",
    ] {
        db.execute(text).wait().unwrap();
    }
    for from in (0..6000).step_by(1000) {
        let text = format!(
            "insert into \"Spread Out\" select n, 'row ' || n from generate_series({from}, {}) n",
            from + 999
        );
        let rows: Vec<String> = (from..from + 1000).map(|n| format!("({n}, 'row {n}')")).collect();
        let text = match db.execute(&text).wait() {
            Ok(_) => continue,
            Err(_) => format!("insert into \"Spread Out\" values {}", rows.join(", ")),
        };
        db.execute(&text).wait().unwrap();
    }
}

const QUESTIONS: [&str; 3] =
    ["select * from kinds order by id", "select * from \"Spread Out\" order by k", "select * from nothing"];

#[test]
fn a_backup_stays_within_its_rate() {
    const BYTES_PER_SECOND: NonZeroU64 = NonZeroU64::new(200_000).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (_cluster, db) = cluster(1, 1);
    fill(&db);
    let written = Arc::new(Mutex::new(0));
    let reported = written.clone();
    let began = Instant::now();
    let made = db.backup(folder.path().join("slow.backup")).bytes_per_second_max(BYTES_PER_SECOND);
    let made = made.watch(move |progress| *reported.lock().unwrap() = progress.bytes).wait().unwrap();
    let took = began.elapsed();
    assert_eq!(made.rows(), 6002);
    let least = *written.lock().unwrap() as f64 / BYTES_PER_SECOND.get() as f64;
    assert!(least > 0.2, "there is enough to see a pace: {least} s");
    assert!(took.as_secs_f64() >= 0.9 * least, "{took:?} for what should take {least} s");
}

#[test]
fn tables_come_back_in_another_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.backup");
    let (_first, db) = cluster(3, 2);
    fill(&db);
    let made = db.backup(&file).wait().unwrap();
    let rows = |name: &str| made.tables.iter().find(|(table, _)| table == name).map(|(_, rows)| *rows);
    assert_eq!((rows("kinds"), rows("Spread Out"), rows("nothing")), (Some(2), Some(6000), Some(0)));
    assert_eq!(made.bytes, fs::metadata(&file).unwrap().len());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(in_folder(folder.path()), ["all.backup"]);
    assert_eq!(backup::verify(&file).wait().unwrap(), made);

    let (_second, other) = cluster(2, 1);
    let reported = Arc::new(Mutex::new(0));
    assert_eq!(
        other
            .restore(&file)
            .watch({
                let reported = reported.clone();
                move |progress| *reported.lock().unwrap() = progress.bytes
            })
            .wait()
            .unwrap(),
        made
    );
    for question in QUESTIONS {
        assert_eq!(all(&other, question), all(&db, question), "{question}");
    }
    // The restored tables also have the definitions of the original tables.
    other.execute("insert into kinds (id) values (3)").wait().unwrap();
    assert_eq!(all(&other, "select t from kinds where id = 3"), [[Value::Text("none".into())]]);
    let double = other.execute("insert into kinds (id) values (1)").wait().unwrap_err();
    assert_eq!(double.sqlstate(), Some("23505"));
}

#[test]
fn tables_are_chosen_and_never_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let (all, some) = (folder.path().join("all.backup"), folder.path().join("some.backup"));
    let (_cluster, db) = cluster(1, 1);
    assert_eq!(db.backup(&all).wait().unwrap_err().sqlstate(), Some("42P01"), "there is no table");
    fill(&db);
    db.backup(&all).wait().unwrap();
    let made = db.backup(&some).only(["kinds"]).wait().unwrap();
    assert_eq!(made.tables, [("kinds".to_owned(), 2)]);
    assert_eq!(
        db.backup(folder.path().join("x")).only(["kinds", "kind"]).wait().unwrap_err().sqlstate(),
        Some("42P01")
    );

    let exists = db.backup(&all).wait().unwrap_err();
    assert!(
        matches!(&exists, Error::File { .. }) && exists.to_string().contains("exists already"),
        "{exists}"
    );
    let there = db.restore(&all).wait().unwrap_err();
    assert_eq!(there.sqlstate(), Some("42P07"));
    let missing = db.restore(&some).only(["nothing"]).wait().unwrap_err();
    assert!(missing.to_string().contains("no table \"nothing\""), "{missing}");
    db.execute("drop table kinds").wait().unwrap();
    assert_eq!(db.restore(&all).only(["kinds"]).wait().unwrap().tables, made.tables);
    assert_eq!(number(&db, "select count(*) from kinds"), 2);
    let mut files = in_folder(folder.path());
    files.sort();
    assert_eq!(files, ["all.backup", "some.backup"], "nothing unfinished is left");
}

#[test]
fn a_damaged_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.backup");
    let (_cluster, db) = cluster(1, 1);
    fill(&db);
    db.backup(&file).wait().unwrap();
    for table in ["kinds", "\"Spread Out\"", "nothing"] {
        db.execute(&format!("drop table {table}")).wait().unwrap();
    }
    let whole = fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    // The damage is near the end, so that a reader gets through nearly all of the file.
    let at = damaged.len() - 30;
    damaged[at] ^= 1;
    for wrong in [&damaged[..], &whole[..whole.len() - 1], b"not a backup at all", b""] {
        fs::write(&file, wrong).unwrap();
        for error in [backup::verify(&file).wait().unwrap_err(), db.restore(&file).wait().unwrap_err()] {
            assert!(matches!(error, Error::File { .. }), "{error}");
        }
        assert_eq!(number(&db, "select count(*) from pg_class where relname in ('kinds', 'nothing')"), 0);
    }
    fs::write(&file, &whole).unwrap();
    db.restore(&file).wait().unwrap();
    assert_eq!(number(&db, "select count(*) from \"Spread Out\""), 6000);
}

/// During the backup, a writer inserts each number into one table and then into another. A second writer
/// updates a third table, whose sum never changes.
#[test]
fn a_backup_is_of_one_position() {
    let folder = tempfile::tempdir().unwrap();
    let (_cluster, db) = cluster(3, 2);
    for text in ["create table first (id int primary key)", "create table later (id int primary key)"] {
        db.execute(text).wait().unwrap();
    }
    db.execute("create table sums (id int primary key, v int)").wait().unwrap();
    let rows: Vec<String> = (0..5000).map(|id| format!("({id}, 0)")).collect();
    db.execute(&format!("insert into sums values {}", rows.join(", "))).wait().unwrap();

    let over = Arc::new(AtomicBool::new(false));
    let spawn = |work: fn(&Db, i32)| {
        let (db, over) = (db.clone(), over.clone());
        thread::spawn(move || {
            for turn in 0.. {
                if over.load(Ordering::Relaxed) {
                    return turn;
                }
                work(&db, turn);
            }
            unreachable!("it is over before numbers are")
        })
    };
    let pairs = spawn(|db, turn| {
        for table in ["first", "later"] {
            db.execute(&format!("insert into {table} values ($1)")).bind(turn).wait().unwrap();
        }
    });
    let moves = spawn(|db, _| {
        db.execute("update sums set v = v + case when id % 2 = 0 then 1 else -1 end").wait().unwrap();
    });
    let files: Vec<_> = (0..5).map(|number| folder.path().join(number.to_string())).collect();
    let mut before = 0;
    for file in &files {
        let acknowledged = number(&db, "select count(*) from later");
        let made = db.backup(file).wait().unwrap();
        let rows = |name: &str| made.tables.iter().find(|(table, _)| table == name).unwrap().1 as i64;
        assert!(rows("later") >= acknowledged, "{made:?} lacks some of {acknowledged}");
        assert!((0..=1).contains(&(rows("first") - rows("later"))), "{made:?} is of several positions");
        assert!(made.position > before, "positions rise");
        before = made.position;
    }
    over.store(true, Ordering::Relaxed);
    assert!(pairs.join().unwrap() > 0 && moves.join().unwrap() > 0, "nothing went on meanwhile");

    for file in &files {
        let (_other, other) = cluster(1, 1);
        other.restore(file).wait().unwrap();
        assert_eq!(number(&other, "select sum(v) from sums"), 0, "half of an update");
        assert_eq!(number(&other, "select count(distinct abs(v)) from sums"), 1);
    }
}

/// A backup that fails, and a backup whose caller drops it, keep no versions.
#[test]
fn a_backup_that_fails_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_cluster, db) = cluster(2, 1);
    fill(&db);
    let nowhere = folder.path().join("not/there/x.backup");
    let error = db.backup(&nowhere).wait().unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error}");
    // The backup goes on in the background after its future is dropped.
    drop(std::future::IntoFuture::into_future(db.backup(folder.path().join("dropped"))));
    db.backup(folder.path().join("second")).wait().unwrap();
}

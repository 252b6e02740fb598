//! Uses the library from outside and checks its promises. `checks/embed` runs this program.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Condvar, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use quorate::{Error, RequestName, Strength, Wait};

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs statements in the ways that the documentation shows.
async fn statements() -> Result<(), Error> {
    let cluster = quorate::Local::start().await?;
    let db = quorate::connect(cluster.addresses()).await?;
    db.execute("create table t (id int primary key, v text)").await?;
    for id in 0..10 {
        db.execute("insert into t values ($1, $2)").bind(id).bind(format!("row {id}")).await?;
    }
    let rows = db.read(Strength::Snapshot).query("select * from t").await?;
    assert!(rows.len() <= 10);
    let row = db.query("select v from t where id = $1").bind(7).await?.next().expect("it is there");
    assert_eq!(row.get::<&str>("v")?, "row 7");

    let name = RequestName::made_up();
    for _ in 0..3 {
        assert_eq!(db.execute("update t set v = 'once' where id = 1").request(name).await?, 1);
    }
    let twice = db.execute("insert into t values (1, 'again')").await;
    assert!(matches!(&twice, Err(Error::Rejected(rejection)) if rejection.sqlstate.as_deref() == Some("23505")), "{twice:?}");

    let mut transaction = db.begin().await?;
    let before = transaction.query("select count(*) from t").await?.next().expect("a count").get::<i64>(0)?;
    transaction.execute("delete from t where id = 9").await?;
    transaction.commit().await?;
    assert_eq!(before, 10);
    db.close().await;
    Ok(())
}

/// Returns the shortest of ten times from nothing to a cluster that has executed a statement.
fn first_statement() -> Duration {
    let first = |_| {
        let began = Instant::now();
        let cluster = quorate::Local::start().wait().expect("a cluster");
        let db = quorate::connect(cluster.addresses()).wait().expect("a client");
        db.execute("create table t (id int primary key)").wait().expect("a table");
        began.elapsed()
    };
    (0..10).map(first).min().expect("there are ten")
}

/// An executor that only polls. It has one queue and one thread.
#[derive(Default)]
struct Plain {
    ready: Mutex<VecDeque<usize>>,
    woken: Condvar,
}

struct Ticket(Arc<Plain>, usize);

impl Wake for Ticket {
    fn wake(self: Arc<Self>) {
        self.0.ready.lock().expect("nobody panics under it").push_back(self.1);
        self.0.woken.notify_one();
    }
}

impl Plain {
    fn run(mut jobs: Vec<Job>) {
        let plain = Arc::new(Plain::default());
        plain.ready.lock().expect("nobody panics under it").extend(0..jobs.len());
        let mut left = jobs.len();
        while left > 0 {
            let ready = plain.ready.lock().expect("nobody panics under it");
            let mut ready = plain.woken.wait_while(ready, |ready| ready.is_empty()).expect("nobody panics");
            let next = ready.pop_front().expect("one is ready");
            drop(ready);
            let waker = Waker::from(Arc::new(Ticket(plain.clone(), next)));
            if let Poll::Ready(()) = jobs[next].as_mut().poll(&mut Context::from_waker(&waker)) {
                // A late wake-up finds a job that never ends.
                jobs[next] = Box::pin(std::future::pending());
                left -= 1;
            }
        }
    }
}

/// A forked process lacks the threads of a client, so the client refuses at once.
fn forked() {
    let cluster = quorate::Local::start().wait().expect("it starts");
    let db = quorate::connect(cluster.addresses()).wait().expect("it connects");
    db.execute("create table t (id int primary key)").wait().expect("a table");
    // Safety: the child only calls the client, which refuses before it takes any lock. The child then ends
    // without any cleanup.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = matches!(db.execute("insert into t values (1)").wait(), Err(Error::Forked));
        // Safety: ends the child at once.
        unsafe { libc::_exit(if told { 0 } else { 1 }) };
    }
    let mut status = 0;
    // Safety: `child` is the process made above, and `status` may be written.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child is told that it is a fork");
    assert_eq!(db.execute("insert into t values (1)").wait().expect("the parent goes on"), 1);
}

fn main() {
    statements().wait().expect("without an executor");
    println!("blocking: ok");
    let under_tokio = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    under_tokio.block_on(statements()).expect("under tokio, without its clock and sockets");
    println!("tokio: ok");
    let job = || -> Job { Box::pin(async { statements().await.expect("under an executor of our own") }) };
    Plain::run(vec![job(), job()]);
    println!("an executor of our own, two at once: ok");
    forked();
    println!("fork: ok");
    println!("first statement: after {} ms (150 should be the most)", first_statement().as_millis());
}

//! A cluster as an operator starts it over machines: one `quorate node` for each process, from files that
//! never change.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use quorate_testing::{free_ports, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use crate::{cluster::turn, command::freeze};

const DOMAIN: &str = "6f1c0f2f6f0b4b0c9d1f7e3a52b8d401";

/// The configuration files of a cluster, and the processes that run from them.
pub(crate) struct Machines {
    directory: TempDir,
    routers: [u16; 3],
    /// Number of storage processes with which the ring is founded.
    pub(crate) storage: usize,
}

/// A running process, which ends when this is dropped.
pub(crate) struct RunningProcess {
    child: Child,
    bound: Value,
}

impl Machines {
    pub(crate) fn new() -> Machines {
        Machines { directory: TempDir::new().unwrap(), routers: free_ports(), storage: 1 }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.file(&format!("{name}.log"))).unwrap()
    }

    /// Starts a process from its file with these additional keys, and waits until it listens.
    pub(crate) fn start(&self, node: usize, name: &str, own: &str) -> RunningProcess {
        let routers = self.routers.map(|port| format!("\"127.0.0.1:{port}\"")).join(", ");
        let role = name.split('-').next().unwrap();
        let text = format!(
            "domain = \"{DOMAIN}\"\nnode = {node}\nname = \"{name}\"\nrole = \"{role}\"\nrouters = [{routers}]\n\
             http_listen = \"127.0.0.1:0\"\nwanted_storage = {}\nreplicas = 1\n{own}\n",
            self.storage
        );
        fs::write(self.file(name), text).unwrap();
        let log =
            fs::File::options().create(true).append(true).open(self.file(&format!("{name}.log"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.arg("node").arg("--config").arg(self.file(name)).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let bound = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{name}: {}", self.log(name)));
        RunningProcess { child, bound }
    }

    /// Starts a process that must be refused and end with `because` in its log. Returns the log, and the
    /// address on which it listened.
    fn ends(&self, node: usize, name: &str, own: &str, because: &str) -> (String, String) {
        let mut running = self.start(node, name, &format!("listen = \"127.0.0.1:0\"\n{own}"));
        let mut ended = None;
        wait_for(&format!("{name} ends"), || {
            ended = running.child.try_wait().unwrap();
            ended.is_some()
        });
        let log = self.log(name);
        assert!(ended.is_some_and(|status| status.code() == Some(1)) && log.contains(because), "{log}");
        (log, running.listens())
    }

    pub(crate) fn router(&self, number: usize) -> RunningProcess {
        let mut own = format!("listen = \"127.0.0.1:{}\"", self.routers[number - 1]);
        if number == 1 {
            own += &format!("\nfound = true\ndata_dir = \"{}\"", self.file("data").display());
        }
        self.start(number, &format!("router-{number}"), &own)
    }

    /// Starts a router with a journal in its own directory.
    pub(crate) fn durable_router(&self, number: usize) -> RunningProcess {
        let own = format!(
            "listen = \"127.0.0.1:{}\"\nfound = {}\ndurable = true\ndata_dir = \"{}\"",
            self.routers[number - 1],
            number == 1,
            self.file(&format!("data-{number}")).display()
        );
        self.start(number, &format!("router-{number}"), &own)
    }

    /// Starts a storage process with a journal in its own directory. It listens at the same port each time.
    pub(crate) fn durable_storage(&self, node: usize, port: u16) -> RunningProcess {
        self.durable_storage_with(node, port, "")
    }

    /// Starts a storage process like `durable_storage`, with these additional keys.
    pub(crate) fn durable_storage_with(&self, node: usize, port: u16, own: &str) -> RunningProcess {
        let data = self.file(&format!("data-{node}"));
        let own = format!(
            "listen = \"127.0.0.1:{port}\"\ndurable = true\ndata_dir = \"{}\"\n{own}",
            data.display()
        );
        self.start(node, &format!("storage-{node}"), &own)
    }

    pub(crate) fn member(&self, node: usize, name: &str) -> RunningProcess {
        let sql = if name.starts_with("gateway") { "sql_listen = \"127.0.0.1:0\"" } else { "" };
        self.start(node, name, &format!("listen = \"127.0.0.1:0\"\n{sql}"))
    }
}

/// Starts a process from flags only, which must fail. Returns its output.
pub(crate) fn refused(flags: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    command.arg("node").arg("--config").arg("/dev/null");
    for flag in flags {
        command.arg("--set").arg(flag);
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

impl RunningProcess {
    pub(crate) fn get(&self, what: &str) -> (u16, String) {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(30)))
            .build();
        let url = format!("http://{}/{what}", self.bound["http"].as_str().unwrap());
        let mut response = ureq::Agent::from(agent).get(url).call().unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.get("status").1).unwrap()
    }

    fn listens(&self) -> String {
        self.bound["listen"].as_str().unwrap().to_owned()
    }

    fn is(&self, state: &str) -> bool {
        self.status()["state"] == state
    }

    fn routers(&self) -> usize {
        self.status()["routers"].as_array().unwrap().len()
    }

    pub(crate) fn is_well(&self) -> bool {
        self.get("health").0 == 200
    }

    /// Waits until `/health` answers 503 with this reason.
    fn wait_ill(&self, why: &str) {
        wait_for(why, || {
            let (code, said) = self.get("health");
            code == 503 && said.contains(why)
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Freezes the process. Returns once none of its threads runs.
    fn freeze(&self) {
        freeze(Pid::from_child(&self.child));
    }

    /// Runs a statement. Returns the code of its error, if it fails.
    pub(crate) fn sql(&self, statement: &str) -> Result<(), String> {
        self.said(statement).map_err(|said| said.chars().take(5).collect())
    }

    /// Returns the connection options of the SQL door.
    pub(crate) fn options(&self) -> String {
        let (host, port) = self.bound["sql"].as_str().unwrap().split_once(':').unwrap();
        format!("host={host} port={port} user=quorate dbname=quorate")
    }

    /// Runs a statement. Returns the code, message and detail of its error, if it fails.
    fn said(&self, statement: &str) -> Result<(), String> {
        let options = self.options();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let said = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&options, NoTls).await?;
            tokio::spawn(connection);
            client.batch_execute(statement).await
        });
        said.map_err(|error| {
            let fields = error.as_db_error();
            let said = fields.map(|said| {
                format!("{} {} {}", said.code().code(), said.message(), said.detail().unwrap_or_default())
            });
            said.unwrap_or_default()
        })
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_process_that_cannot_work_reports_its_reason() {
    let _turn = turn();
    let machines = Machines::new();
    // A gateway that has not joined knows no tables. It must not claim that there are none.
    let gateway = machines.member(4, "gateway-1");
    assert_eq!(gateway.sql("select * from kept"), Err(String::from("57P03")));
    gateway.wait_ill("joining");

    let began = Instant::now();
    let mut routers = vec![machines.router(1)];
    assert!(began.elapsed() < Duration::from_secs(5), "the first router does not wait for other routers");
    routers.extend([machines.router(2), machines.router(3)]);
    let others = [machines.member(5, "super-1"), machines.member(6, "storage-1")];
    wait_for("a table is there", || {
        gateway.sql("create table if not exists kept (k int primary key)").is_ok()
    });
    wait_for("three routers vote", || routers[0].routers() == 3);
    let all = || routers.iter().chain(&others).chain([&gateway]);
    wait_for("all are well", || all().all(RunningProcess::is_well));

    // A leader without followers can do nothing, and neither can any other process.
    routers[1].freeze();
    routers[2].freeze();
    routers[0].wait_ill("no router is known to lead");
    for member in others.iter().chain([&gateway]) {
        member.wait_ill("has no majority");
    }
    // If no router answers, the other processes report that, although no connection is broken.
    routers[0].freeze();
    gateway.wait_ill("does not answer");
    others[1].wait_ill("does not answer");
    routers.iter().for_each(|router| router.signal(Signal::CONT));
    wait_for("all are well again", || all().all(RunningProcess::is_well));
    assert_eq!(gateway.sql("select * from kept"), Ok(()));
}

/// All routers are killed at once and continue from their journals without an operator. The other processes
/// wait.
#[test]
fn routers_with_journals_survive_a_simultaneous_kill() {
    let _turn = turn();
    let machines = Machines::new();
    let all = || [1, 2, 3].map(|number| machines.durable_router(number));
    let mut routers = all();
    let gateway = machines.member(4, "gateway-1");
    let _super = machines.member(5, "super-1");
    let storage = machines.member(6, "storage-1");
    wait_for("a table is there", || {
        gateway.sql("create table if not exists kept (k int primary key)").is_ok()
    });
    wait_for("three vote", || routers.iter().all(|router| router.routers() == 3));
    let names = |routers: &[RunningProcess]| -> Vec<Value> {
        routers.iter().map(|router| router.status()["process"].clone()).collect()
    };
    let (before, serving) = (names(&routers), storage.status()["process"].clone());
    for kill in 1..=3 {
        assert_eq!(gateway.sql(&format!("insert into kept values ({kill})")), Ok(()));
        routers.iter().for_each(|router| router.signal(Signal::KILL));
        drop(routers);
        routers = all();
        wait_for("somebody leads", || routers.iter().any(|router| router.is("leading")));
        wait_for("all answer", || names(&routers).iter().all(Value::is_string));
        assert_eq!(names(&routers), before, "the routers are the same processes as before");
        wait_for("writes go on", || gateway.sql(&format!("insert into kept values (-{kill})")).is_ok());
        let there = format!("select 1 / (count(*) - {}) from kept", 2 * kill);
        assert_eq!(gateway.sql(&there), Err(String::from("22012")), "all rows are there");
    }
    assert_eq!(storage.status()["process"], serving, "no storage process was given up meanwhile");

    // A router that the other routers have voted out comes back as another process with the same directory.
    let follower = routers.iter().position(|router| router.is("following")).unwrap();
    let leader = routers.iter().position(|router| router.is("leading")).unwrap();
    routers[follower].freeze();
    wait_for("the lead router is voted out", || routers[leader].routers() == 2);
    routers[follower].signal(Signal::CONT);
    wait_for("three vote again", || routers[leader].routers() == 3);
    assert_ne!(routers[follower].status()["process"], before[follower]);
    routers.iter().for_each(|router| router.signal(Signal::KILL));
    drop(routers);
    routers = all();
    wait_for("writes go on", || gateway.sql("insert into kept values (100)").is_ok());
    drop(routers);
}

/// Longest time until a client's statement fails because a majority of the routers is away. The processes
/// need 1.5 s to notice the loss, and longer on a busy machine. The bound is less than half of a gateway's
/// patience with a write or read of unknown outcome.
const TOLD_WITHIN: Duration = Duration::from_secs(12);

#[test]
fn a_client_learns_at_once_of_a_lost_majority_of_routers() {
    let _turn = turn();
    let machines = Machines::new();
    let routers = [machines.router(1), machines.router(2), machines.router(3)];
    let own = "listen = \"127.0.0.1:0\"\nsql_listen = \"127.0.0.1:0\"\nwrite_wait_ms = 30000";
    let gateway = machines.start(4, "gateway-1", own);
    let others = [machines.member(5, "super-1"), machines.member(6, "storage-1")];
    wait_for("a table is there", || {
        gateway.sql("create table if not exists kept (k int primary key)").is_ok()
    });
    let all = || routers.iter().chain(&others).chain([&gateway]);
    wait_for("all are well", || routers[0].routers() == 3 && all().all(RunningProcess::is_well));
    let read = "set quorate.read = 'sequential'; select * from kept";
    assert_eq!((gateway.sql("insert into kept values (1)"), gateway.sql(read)), (Ok(()), Ok(())));

    let run_statement = |statement: &str| {
        let began = Instant::now();
        let said = gateway.said(statement).expect_err(statement);
        (said, began.elapsed())
    };
    let why = "no majority of the routers leads";
    for router in &routers[1..] {
        router.freeze();
    }
    // The router that led gets both statements, and neither has a result.
    let (wrote, asked) = std::thread::scope(|scope| {
        let wrote = scope.spawn(|| run_statement("insert into kept values (2)"));
        // A read before the write would be answered: reading needs no majority while nothing is under way.
        std::thread::sleep(Duration::from_millis(300));
        let asked = scope.spawn(|| run_statement(read));
        (wrote.join().unwrap(), asked.join().unwrap())
    });
    assert!(wrote.0.starts_with("40003") && wrote.0.to_lowercase().contains(why), "{wrote:?}");
    assert!(asked.0.starts_with("40001") && asked.0.contains(why), "{asked:?}");
    assert!(wrote.1.max(asked.1) < TOLD_WITHIN, "{wrote:?} {asked:?}");
    // The gateway now knows of the loss, so it refuses later statements at once without sending them.
    for statement in ["insert into kept values (3)", read] {
        let (said, took) = run_statement(statement);
        assert!(said.starts_with("40001") && said.contains(why), "{said}");
        assert!(took < Duration::from_secs(1), "{statement}: {took:?}");
    }
    assert_eq!(gateway.sql("set quorate.read = 'basic'; select * from kept"), Ok(()), "it needs no order");

    for router in &routers[1..] {
        router.signal(Signal::CONT);
    }
    wait_for("writes succeed again", || gateway.sql("insert into kept values (4)").is_ok());
    assert_eq!(gateway.sql("insert into kept values (3)"), Ok(()), "the refused write was not applied");
}

#[test]
fn an_unreachable_advertised_address_is_refused() {
    let flags = [
        "domain=6f1c0f2f6f0b4b0c9d1f7e3a52b8d401",
        "node=6",
        "name=storage-1",
        "role=storage",
        "routers=[\"127.0.0.1:9\"]",
        "http_listen=127.0.0.1:0",
        "insecure=true",
    ];
    for all in ["listen=0.0.0.0:0", "listen=[::]:0"] {
        let said = refused(&[&flags[..], &[all]].concat());
        assert!(said.contains("add advertise = \"HOST:0\""), "{said}");
    }
}

#[test]
fn a_gateway_does_not_wait_for_ever_for_an_unreachable_storage_process() {
    let _turn = turn();
    let machines = Machines::new();
    let _routers = [machines.router(1), machines.router(2), machines.router(3)];
    let gateway = machines.member(4, "gateway-1");
    let _super = machines.member(5, "super-1");
    // This storage process reaches the other processes, but advertises an address where nobody listens.
    let [nowhere] = free_ports();
    let own = format!("listen = \"0.0.0.0:0\"\nadvertise = \"127.0.0.1:{nowhere}\"\ninsecure = true");
    let storage = machines.start(6, "storage-1", &own);
    wait_for("the storage process serves", || storage.is("serving"));
    wait_for("a table is there", || {
        gateway.sql("create table if not exists kept (k int primary key)").is_ok()
    });
    // Other processes reach this storage process through a router, or an error names it. No statement waits
    // forever.
    for statement in
        ["select * from kept", "select count(*) from kept where k = 1", "insert into kept values (1)"]
    {
        let began = Instant::now();
        if let Err(said) = gateway.said(statement) {
            let named = said.starts_with("58000") && said.contains(&format!("storage-1 at {nowhere}"));
            assert!(named || said.starts_with("40003"), "{said}");
            gateway.wait_ill("no link to storage-1");
        }
        assert!(began.elapsed() < Duration::from_secs(8), "{statement}: {:?}", began.elapsed());
    }
}

#[test]
fn a_second_process_of_a_node_is_refused_and_the_next_life_of_one_is_not() {
    let _turn = turn();
    let machines = Machines::new();
    let mut routers = [machines.router(1), machines.router(2), machines.router(3)];
    let gateway = machines.member(4, "gateway-1");
    let _super = machines.member(5, "super-1");
    let storage = machines.member(6, "storage-1");
    wait_for("the gateway is well", || {
        gateway.is_well() && routers.iter().all(|router| router.routers() == 3)
    });

    // The log of the second process names both processes.
    let refused = |node: usize, name: &str, at: &RunningProcess| {
        let first = at.status()["process"].as_str().unwrap().to_owned();
        let in_use = format!("node {node} is in use: the process {first} at {} belongs", at.listens());
        let (log, listened) = machines.ends(node, name, "", &in_use);
        let (_, itself) = log.split_once("this process, ").expect("the log names the process itself");
        let (second, _) =
            itself.split_once(&format!(" at {listened}, cannot join with the same node number")).expect(&log);
        assert!(second.starts_with(&format!("{node}.")) && second != first, "{log}");
    };
    // The node belongs to a member in the same or another role, to a leading router, or to a following
    // router.
    refused(6, "storage-2", &storage);
    refused(4, "storage-3", &gateway);
    refused(1, "storage-4", &routers[0]);
    refused(2, "router-2x", &routers[1]);
    refused(1, "router-1x", &routers[0]);
    refused(6, "router-6", &storage);
    assert!(gateway.is_well() && routers.iter().all(|router| router.routers() == 3));
    assert!(storage.is("serving") && routers[0].is("leading"), "the other processes are unaffected");

    // A router that died may return at once as another process.
    for (number, router) in routers.iter_mut().enumerate() {
        router.signal(Signal::KILL);
        router.child.wait().unwrap();
        let began = Instant::now();
        *router = machines.router(number + 1);
        wait_for("the new router votes", || router.is("following"));
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        wait_for("three vote", || router.routers() == 3);
    }
    drop(gateway);
    let began = Instant::now();
    let gateway = machines.member(4, "gateway-1");
    wait_for("the gateway joins", || gateway.is_well());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn an_unfounded_ring_is_reported_and_only_the_founders_terms_count() {
    let _turn = turn();
    let machines = Machines { storage: 2, ..Machines::new() };
    let mut routers = [machines.router(1), machines.router(2), machines.router(3)];
    let own = "listen = \"127.0.0.1:0\"\nsql_listen = \"127.0.0.1:0\"\nwrite_wait_ms = 700";
    let gateway = machines.start(4, "gateway-1", own);
    let superior = machines.member(5, "super-1");
    let first = machines.member(6, "storage-1");
    let create = "create table kept (k int primary key)";
    for process in [&gateway, &superior, &first] {
        process.wait_ill("the ring is not founded: 1 of 2 storage processes have joined");
    }
    let said = gateway.said(create).unwrap_err();
    assert!(said.starts_with("55000") && said.contains("1 of 2 storage processes"), "{said}");
    assert!(routers.iter().all(RunningProcess::is_well), "the routers are well");

    let others = Machines { storage: 3, directory: TempDir::new().unwrap(), routers: machines.routers };
    let because = "wanted_storage = 3, but the domain was founded with 2";
    others.ends(7, "storage-2", "", because);
    others.ends(8, "super-2", "", because);
    others.ends(10, "gateway-2", "sql_listen = \"127.0.0.1:0\"", because);

    // A router notices that another router was accepted when it receives the log.
    wait_for("three vote", || routers[0].routers() == 3);
    routers[2].signal(Signal::KILL);
    routers[2].child.wait().unwrap();
    others.ends(3, "router-3x", "", because);
    routers[2] = machines.router(3);

    let second = machines.member(7, "storage-2");
    let all = || routers.iter().chain([&gateway, &superior, &first, &second]);
    wait_for("all are well", || all().all(RunningProcess::is_well));
    assert_eq!(gateway.sql(create), Ok(()));
    assert_eq!(gateway.sql("insert into kept values (1)"), Ok(()));
}

#[test]
fn a_founder_started_again_from_its_file_joins_its_domain() {
    let _turn = turn();
    let machines = Machines::new();
    // Routers that join do not prevent the first router from founding, in whatever order they start.
    let mut second = machines.router(2);
    let mut first = machines.router(1);
    let third = machines.router(3);
    let voters = |routers: &[&RunningProcess]| routers.iter().all(|router| router.routers() == 3);
    wait_for("three routers vote", || voters(&[&first, &second, &third]));
    assert!(first.is("leading"), "the first router founded the domain");

    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    wait_for("another leads", || second.is("leading") || third.is("leading"));
    first = machines.router(1);
    wait_for("the first router votes with the others", || {
        first.is("following") && voters(&[&first, &second, &third])
    });
    assert!(machines.log("router-1").contains("the domain exists already"));

    // Alone, the first router cannot tell whether the other routers are gone or cut off. The mark proves that
    // they existed.
    first.signal(Signal::KILL);
    drop((second, third));
    first.child.wait().unwrap();
    first = machines.router(1);
    assert!(machines.log("router-1").contains("does not found the domain again"));
    second = machines.router(2);
    std::thread::sleep(Duration::from_secs(1));
    assert!(first.is("joining") && second.is("joining"), "no router founds the domain");
}

/// Number of gateways that are cut off at the same time.
const GATEWAYS: usize = 10;
/// Longest time from the return of a gateway to the answer to its client's next statement.
const BACK_WITHIN: Duration = Duration::from_secs(2);

#[test]
fn gateways_that_were_given_up_at_once_come_back_and_keep_their_clients() {
    let _turn = turn();
    let machines = Machines::new();
    let _routers = [machines.router(1), machines.router(2), machines.router(3)];
    let superior = machines.member(4, "super-1");
    let _storage = machines.member(5, "storage-1");
    let start = |number: usize| machines.member(5 + number, &format!("gateway-{number}"));
    let mut gateways: Vec<RunningProcess> = (1..=GATEWAYS).map(start).collect();
    wait_for("a table is there", || {
        gateways[0].sql("create table if not exists kept (k int primary key)").is_ok()
    });
    for gateway in &gateways {
        wait_for("each gateway is taken in", || gateway.is_well());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let clients: Vec<Arc<Client>> =
        gateways.iter().map(|gateway| Arc::new(runtime.block_on(kept_client(gateway)))).collect();

    let process = |gateway: &RunningProcess| gateway.status()["process"].clone();
    let before: Vec<Value> = gateways.iter().map(process).collect();
    let bound = gateways.iter().map(|gateway| gateway.bound.clone());
    let sockets: Vec<(Value, Value)> =
        bound.map(|bound| (bound["sql"].clone(), bound["listen"].clone())).collect();
    let members = || {
        let members = superior.status()["members"].as_array().unwrap().clone();
        members.into_iter().map(|member| member["process"].clone()).collect::<Vec<Value>>()
    };
    for gateway in &gateways {
        gateway.freeze();
    }
    wait_for("the others give all of them up", || {
        let members = members();
        before.iter().all(|process| !members.contains(process))
    });
    for gateway in &gateways {
        gateway.signal(Signal::CONT);
    }
    let began = Instant::now();
    let next = clients.iter().enumerate().map(|(key, client)| {
        let client = client.clone();
        runtime.spawn(async move { answered(&client, key, began).await })
    });
    let next: Vec<_> = next.collect();
    let took: Vec<Duration> = next.into_iter().map(|task| runtime.block_on(task).unwrap()).collect();
    assert!(took.iter().all(|took| *took <= BACK_WITHIN), "{took:?}");
    let members = members();
    for (((gateway, client), before), sockets) in gateways.iter_mut().zip(&clients).zip(&before).zip(&sockets)
    {
        assert!(gateway.child.try_wait().unwrap().is_none(), "in the same operating-system process");
        let status = gateway.status();
        let after = &status["process"];
        assert!(after != before && members.contains(after), "as a new process: {before} and {after}");
        let at = status["members"].as_array().unwrap().iter().find(|member| member["process"] == *after);
        assert_eq!(at.unwrap()["address"], sockets.1, "where it was");
        let set = runtime.block_on(client.query_one("show application_name", &[])).unwrap();
        assert_eq!(set.get::<_, &str>(0), "kept", "its session went on");
        gateway
            .sql("select 1")
            .unwrap_or_else(|error| panic!("it takes new clients at {}: {error}", sockets.0));
    }
}

/// Connects a client to a gateway, with a setting that only its session has.
async fn kept_client(gateway: &RunningProcess) -> Client {
    let (host, port) = gateway.bound["sql"].as_str().unwrap().split_once(':').unwrap();
    let options = format!("host={host} port={port} user=quorate dbname=quorate");
    let (client, connection) = tokio_postgres::connect(&options, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("set application_name = 'kept'").await.unwrap();
    client
}

/// Repeats an insert until it succeeds, and returns the time since `began`. Each failure must be temporary or
/// of unknown outcome.
async fn answered(client: &Client, key: usize, began: Instant) -> Duration {
    let insert = format!("insert into kept values ({key})");
    let until = began + Duration::from_secs(60);
    loop {
        match client.batch_execute(&insert).await {
            Ok(()) => return began.elapsed(),
            Err(error) => {
                let code = error.code().unwrap_or_else(|| panic!("the connection stays: {error}")).code();
                assert!(["40001", "40003", "23505"].contains(&code), "{error}");
                // An earlier attempt of unknown outcome was applied.
                if code == "23505" {
                    return began.elapsed();
                }
            }
        }
        assert!(Instant::now() < until, "gateway {key} answers");
        // The gateway may refuse at once while it is between two lives.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

//! Maps on disks. The files of the router and the cells hand bytes to the system only at a sync, so dropping
//! a process leaves what a power cut would leave.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    time::Duration,
};

use bytes::{BufMut as _, Bytes};
use quorate::{
    Node, Wait,
    maps::{CellEndpoint, Command, Front, Process, Setup, strategy},
    node::Member,
    process::End,
};
use quorate_protocol::{
    CommandId, DomainId, ProcessId, Role, Terms, Time, detector,
    partial::{
        self, Action, Change, Copies, JoinOptions, Level, Map, MapId, Operation, OperationOutcome,
        ReadRepair, Settings, Site, Strategy, Value, resident, tokens_of,
    },
    relay::Relay,
};
use quorate_runtime::door::{ClientId, ClientLimits, Clients, Door, Flow};
use quorate_testing::{free_ports, wait_for};

/// A line protocol for clients: `create`, `put KEY VALUE`, `add KEY NUMBER`, `get KEY`. Every operation runs
/// at a quorum.
#[derive(Default)]
struct Lines {
    asked: u64,
    waiting: BTreeMap<u64, ClientId>,
    answers: Vec<(ClientId, String)>,
}

impl Lines {
    fn command(&self, line: &str) -> resident::Command {
        let words: Vec<&str> = line.split(' ').collect();
        let operate = |key: &str, action| {
            resident::Command::Cell(partial::Command::Operate(Operation {
                id: self.asked,
                map: MapId(1),
                key: Bytes::copy_from_slice(key.as_bytes()),
                level: Level::Quorum,
                fallback: None,
                delay: Duration::ZERO,
                action,
            }))
        };
        match words[..] {
            ["create"] => {
                let copies = Copies::new([(Site(0), 3)]).unwrap();
                let map = Map { copies, strategy: Strategy::Quorum(ReadRepair::Blocking) };
                let change = Change::CreateMap { name: String::from("main"), map };
                resident::Command::Change { id: CommandId(self.asked), change: Box::new(change) }
            }
            ["put", key, value] => {
                let value = Bytes::copy_from_slice(value.as_bytes());
                operate(key, Action::Put { value, lifetime: None })
            }
            ["add", key, number] => operate(key, Action::Add(number.parse().unwrap())),
            ["get", key] => operate(key, Action::Read),
            _ => panic!("what is {line}?"),
        }
    }

    fn answer(&mut self, id: u64, answer: String) {
        if let Some(client) = self.waiting.remove(&id) {
            self.answers.push((client, answer));
        }
    }
}

impl Door<Relay<CellEndpoint>> for Lines {
    fn opened(&mut self, _: ClientId, _: Time) {}

    fn take(
        &mut self,
        client: ClientId,
        input: &[u8],
        _: Time,
        ask: &mut dyn FnMut(Command),
    ) -> (usize, Flow) {
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return (0, Flow::Wait) };
        self.asked += 1;
        self.waiting.insert(self.asked, client);
        let line = std::str::from_utf8(&input[..end]).unwrap();
        ask(Command::Resident(self.command(line)));
        (end + 1, Flow::More)
    }

    fn give(&mut self, clients: &mut Clients) {
        for (client, answer) in self.answers.drain(..) {
            if let Some(output) = clients.output(client) {
                output.put_slice(answer.as_bytes());
                output.put_u8(b'\n');
            }
        }
    }

    fn closed(&mut self, _: ClientId) {}

    fn crowded(&mut self) -> &'static [u8] {
        b"crowded\n"
    }
}

impl Front for Lines {
    fn attach(&mut self, _: ProcessId) {}

    fn answered(&mut self, id: u64, outcome: strategy::Outcome, _: Time) {
        unreachable!("{id} was asked of no other strategy, and ended in {outcome:?}")
    }

    fn event(&mut self, event: resident::Event, _: Time) {
        match event {
            resident::Event::Cell(partial::Event::Ended { id, outcome }) => {
                let answer = match outcome {
                    OperationOutcome::Found { value: Value::String(value), .. } => {
                        String::from_utf8(value.to_vec()).unwrap()
                    }
                    OperationOutcome::Found { .. } => String::from("nothing"),
                    OperationOutcome::Done { .. } => String::from("done"),
                    OperationOutcome::Counted { count, .. } => count.to_string(),
                    other => format!("{other:?}"),
                };
                self.answer(id, answer);
            }
            resident::Event::Changed { id, result } => self.answer(id.0, format!("{result:?}")),
            _ => {}
        }
    }
}

/// A router and three cells, each with its own directory and address.
struct MapsCluster {
    directory: tempfile::TempDir,
    ports: [u16; 4],
    doors: [u16; 4],
    router: Option<Node>,
    /// The cells, from index 1.
    cells: [Option<Process>; 4],
}

const DOMAIN: DomainId = DomainId(0xd15c);
const ROUTER: usize = 0;

impl MapsCluster {
    fn new() -> MapsCluster {
        let directory = tempfile::tempdir().unwrap();
        let (ports, doors) = (free_ports(), free_ports());
        MapsCluster { directory, ports, doors, router: None, cells: [const { None }; 4] }
    }

    fn router(&self) -> String {
        format!("127.0.0.1:{}", self.ports[ROUTER])
    }

    fn setup(&self, at: usize) -> Setup {
        let listener = TcpListener::bind(("127.0.0.1", self.doors[at])).unwrap();
        let front: (Box<dyn Front>, TcpListener) = (Box::new(Lines::default()), listener);
        Setup {
            domain: DOMAIN,
            number: at as u64 + 1,
            name: format!("process-{at}"),
            routers: vec![self.router()],
            listen: format!("127.0.0.1:{}", self.ports[at]),
            advertise: None,
            insecure: false,
            directory: Some(self.place(at)),
            durable: true,
            late_files: true,
            detector: detector::Settings::default(),
            clients: ClientLimits::default(),
            place: JoinOptions {
                name: format!("cell-{at}"),
                site: Site(0),
                tokens: tokens_of(at as u64, 16),
            },
            distances: BTreeMap::new(),
            settings: Settings::default(),
            front: Some(front),
            strategies: None,
            services: None,
        }
    }

    fn place(&self, at: usize) -> std::path::PathBuf {
        self.directory.path().join(at.to_string())
    }

    fn start(&mut self, at: usize) {
        if at == ROUTER {
            let router = Node::builder()
                .role(Role::Router)
                .found()
                .domain(DOMAIN)
                .number(1)
                .listen(self.router())
                .terms(Terms { wanted_routers: 1, ..Terms::default() })
                .directory(self.place(at))
                .durable()
                .late_files();
            self.router = Some(router.start().wait().unwrap());
        } else {
            self.cells[at] = Some(Process::start(self.setup(at)).unwrap());
        }
    }

    /// Ends the process as if it had been killed.
    fn kill(&mut self, at: usize) {
        if at == ROUTER {
            self.router.take().unwrap().abandon().wait();
        } else {
            self.cells[at] = None;
        }
    }

    fn cell(&self, at: usize) -> &Process {
        self.cells[at].as_ref().unwrap()
    }

    fn id(&self, at: usize) -> ProcessId {
        match &self.router {
            Some(router) if at == ROUTER => router.member().as_ref().map(Member::id).unwrap(),
            _ => self.cell(at).id(),
        }
    }

    fn ask(&self, at: usize, line: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.doors[at])).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Repeats the request until the answer is `wanted`.
    fn wait(&self, at: usize, line: &str, wanted: &str) {
        wait_for(line, || self.ask(at, line) == wanted);
    }

    fn resumed(&self, at: usize) -> Option<bool> {
        Some(self.cell(at).status(PATIENCE)?.cell.resumed)
    }

    fn arriving(&self, at: usize) -> bool {
        let status = self.cell(at).status(PATIENCE);
        status.is_none_or(|status| status.cell.number.is_none() || status.cell.arriving.is_some())
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

/// Flips a bit in the middle of the oldest segment of a journal.
fn rot(place: &Path) {
    let mut within = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    let journal = within.find(|path| path.is_dir()).expect("it has a journal");
    let mut segments: Vec<_> = fs::read_dir(journal).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|it| it == "segment"));
    segments.sort();
    let mut bytes = fs::read(&segments[0]).unwrap();
    bytes[200] ^= 1;
    fs::write(&segments[0], bytes).unwrap();
}

#[test]
fn cells_that_are_all_killed_come_back_with_their_keys() {
    let mut maps_cluster = MapsCluster::new();
    (0..4).for_each(|at| maps_cluster.start(at));
    for at in 1..=3 {
        wait_for("it is a cell", || !maps_cluster.arriving(at));
    }
    maps_cluster.wait(1, "create", "Ok(())");
    maps_cluster.wait(2, "put first 1", "done");
    for number in 0..200 {
        assert_eq!(maps_cluster.ask(number % 3 + 1, &format!("put key-{} {number}", number % 50)), "done");
    }
    for number in 1..=30 {
        assert_eq!(maps_cluster.ask(number % 3 + 1, "add visits 1"), number.to_string());
    }
    let before = [0, 1, 2, 3].map(|at| maps_cluster.id(at));

    // All four are killed at once. The cells remember each other and the map, so they start without a router.
    (0..4).for_each(|at| maps_cluster.kill(at));
    for at in [3, 1, 2] {
        maps_cluster.start(at);
    }
    for number in 150..200 {
        maps_cluster.wait(number % 3 + 1, &format!("get key-{}", number % 50), &number.to_string());
    }
    for number in 31..=40 {
        assert_eq!(maps_cluster.ask(number % 3 + 1, "add visits 1"), number.to_string());
    }
    maps_cluster.start(ROUTER);
    assert_eq!([0, 1, 2, 3].map(|at| maps_cluster.id(at)), before, "they are the processes that they were");
    assert!((1..=3).all(|at| maps_cluster.resumed(at) == Some(true)));
    maps_cluster.wait(1, "get first", "1");

    // Part of the durable data is unreadable. The cell restarts as another process and copies the data of the
    // others.
    maps_cluster.kill(2);
    rot(&maps_cluster.place(2));
    maps_cluster.start(2);
    assert_ne!(maps_cluster.id(2), before[2]);
    wait_for("it has copied its keys", || !maps_cluster.arriving(2));
    assert_eq!(maps_cluster.resumed(2), Some(false));
    maps_cluster.kill(1);
    maps_cluster.wait(3, "get key-0", "150");
    maps_cluster.wait(2, "get key-49", "199");

    // A cell whose address differs from the one that the others know refuses to start.
    maps_cluster.ports[1] = free_ports::<1>()[0];
    let refused = Process::start(maps_cluster.setup(1)).err().expect("the others know it at another address");
    assert!(refused.to_string().contains("the other processes know this process at"), "{refused}");
}

/// While a cell was down, another cell took its place. The cell learns that it is out, and starts over in its
/// directory.
#[test]
fn a_cell_that_is_out_comes_back_as_another_process() {
    let mut maps_cluster = MapsCluster::new();
    (0..4).for_each(|at| maps_cluster.start(at));
    for at in 1..=3 {
        wait_for("it is a cell", || !maps_cluster.arriving(at));
    }
    maps_cluster.wait(1, "create", "Ok(())");
    maps_cluster.wait(2, "put first 1", "done");
    let before = maps_cluster.id(3);
    maps_cluster.kill(3);
    // The same node starts with an empty directory.
    let aside = maps_cluster.directory.path().join("aside");
    fs::rename(maps_cluster.place(3), &aside).unwrap();
    maps_cluster.start(3);
    wait_for("it has copied its keys", || !maps_cluster.arriving(3));
    maps_cluster.kill(3);
    fs::remove_dir_all(maps_cluster.place(3)).unwrap();
    fs::rename(&aside, maps_cluster.place(3)).unwrap();
    maps_cluster.start(3);
    assert_eq!(maps_cluster.id(3), before);
    let end = maps_cluster.cell(3).ended().recv_timeout(Duration::from_secs(30));
    assert!(matches!(end, Ok(End::Wedged | End::OlderCopy(_))), "{end:?}");
    if end == Ok(End::Wedged) {
        maps_cluster.kill(3);
        maps_cluster.start(3);
        assert_ne!(maps_cluster.id(3), before);
        wait_for("it has copied its keys", || !maps_cluster.arriving(3));
        maps_cluster.wait(3, "get first", "1");
    }
}

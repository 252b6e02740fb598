//! Maps on disks: routers and cells whose files hand over bytes only at a sync, so that one that is dropped leaves what a power cut
//! would leave.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use bytes::{BufMut as _, Bytes};
use quorate::{
    maps::{Command, Front, Kind, Process, Setup, Task, strategy},
    process::End,
};
use quorate_protocol::{
    CommandId, DomainId, ProcessId, Time, detector,
    partial::{
        Action, Change, Copies, Level, Map, MapId, Operation, Outcome, Place, ReadRepair, Settings, Site,
        Strategy, Value, resident, tokens_of,
    },
};
use quorate_runtime::door::{ClientId, ClientLimits, Clients, Door, Flow};

/// Clients that ask in lines: `create`, `put KEY VALUE`, `add KEY NUMBER`, `get KEY`. All is done at a quorum.
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
            resident::Command::Operate(Operation {
                id: self.asked,
                map: MapId(1),
                key: Bytes::copy_from_slice(key.as_bytes()),
                level: Level::Quorum,
                fallback: None,
                delay: Duration::ZERO,
                action,
            })
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

impl Door<Kind> for Lines {
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
        ask(Command::Cell(self.command(line)));
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
            resident::Event::Ended { id, outcome } => {
                let answer = match outcome {
                    Outcome::Found { value: Value::String(value), .. } => {
                        String::from_utf8(value.to_vec()).unwrap()
                    }
                    Outcome::Found { .. } => String::from("nothing"),
                    Outcome::Done { .. } => String::from("done"),
                    Outcome::Counted { count, .. } => count.to_string(),
                    other => format!("{other:?}"),
                };
                self.answer(id, answer);
            }
            resident::Event::Changed { id, result } => self.answer(id.0, format!("{result:?}")),
            _ => {}
        }
    }
}

/// A router and three cells, each with a directory and an address of its own.
struct Town {
    directory: tempfile::TempDir,
    ports: [u16; 4],
    doors: [u16; 4],
    processes: [Option<Process>; 4],
}

const ROUTER: usize = 0;

fn free<const N: usize>() -> [u16; N] {
    // All at once, so that no two are alike.
    let free = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    free.each_ref().map(|listener| listener.local_addr().unwrap().port())
}

impl Town {
    fn new() -> Town {
        let directory = tempfile::tempdir().unwrap();
        Town { directory, ports: free(), doors: free(), processes: [const { None }; 4] }
    }

    fn setup(&self, at: usize) -> Setup {
        let task = if at == ROUTER {
            Task::Router { found: true, wanted: 1 }
        } else {
            let place = Place { name: format!("cell-{at}"), site: Site(0), tokens: tokens_of(at as u64, 16) };
            let listener = TcpListener::bind(("127.0.0.1", self.doors[at])).unwrap();
            let front: (Box<dyn Front>, TcpListener) = (Box::new(Lines::default()), listener);
            let (distances, settings) = (BTreeMap::new(), Settings::default());
            Task::Cell { place, distances, settings, front: Some(front), strategies: None }
        };
        Setup {
            domain: DomainId(0xd15c),
            number: at as u64 + 1,
            name: format!("process-{at}"),
            routers: vec![format!("127.0.0.1:{}", self.ports[ROUTER])],
            listen: format!("127.0.0.1:{}", self.ports[at]),
            advertise: None,
            insecure: false,
            directory: Some(self.place(at)),
            durable: true,
            late_files: true,
            detector: detector::Settings::default(),
            clients: ClientLimits::default(),
            task,
        }
    }

    fn place(&self, at: usize) -> std::path::PathBuf {
        self.directory.path().join(at.to_string())
    }

    fn start(&mut self, at: usize) {
        self.processes[at] = Some(Process::start(self.setup(at)).unwrap());
    }

    /// Ends it as if it had been killed.
    fn kill(&mut self, at: usize) {
        self.processes[at] = None;
    }

    fn process(&self, at: usize) -> &Process {
        self.processes[at].as_ref().unwrap()
    }

    fn ask(&self, at: usize, line: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.doors[at])).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Asks until it is answered so.
    fn wait(&self, at: usize, line: &str, wanted: &str) {
        wait_for(line, || self.ask(at, line) == wanted);
    }

    fn resumed(&self, at: usize) -> Option<bool> {
        Some(self.process(at).status(PATIENCE)?.cell?.resumed)
    }

    fn arriving(&self, at: usize) -> bool {
        let status = self.process(at).status(PATIENCE);
        status
            .and_then(|status| status.cell)
            .is_none_or(|cell| cell.number.is_none() || cell.arriving.is_some())
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < until, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Turns a bit in the middle of the oldest segment of a journal.
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
    let mut town = Town::new();
    (0..4).for_each(|at| town.start(at));
    for at in 1..=3 {
        wait_for("it is a cell", || !town.arriving(at));
    }
    town.wait(1, "create", "Ok(())");
    town.wait(2, "put first 1", "done");
    for number in 0..200 {
        assert_eq!(town.ask(number % 3 + 1, &format!("put key-{} {number}", number % 50)), "done");
    }
    for number in 1..=30 {
        assert_eq!(town.ask(number % 3 + 1, "add visits 1"), number.to_string());
    }
    let before = [0, 1, 2, 3].map(|at| town.process(at).id());

    // All at once. The cells know each other and the map, and wait for no router.
    (0..4).for_each(|at| town.kill(at));
    for at in [3, 1, 2] {
        town.start(at);
    }
    for number in 150..200 {
        town.wait(number % 3 + 1, &format!("get key-{}", number % 50), &number.to_string());
    }
    for number in 31..=40 {
        assert_eq!(town.ask(number % 3 + 1, "add visits 1"), number.to_string());
    }
    town.start(ROUTER);
    assert_eq!([0, 1, 2, 3].map(|at| town.process(at).id()), before, "they are the processes that they were");
    assert!((1..=3).all(|at| town.resumed(at) == Some(true)));
    town.wait(1, "get first", "1");

    // Not all that was durable can be read: another process takes its place, and copies what the others have.
    town.kill(2);
    rot(&town.place(2));
    town.start(2);
    assert_ne!(town.process(2).id(), before[2]);
    wait_for("it has copied its keys", || !town.arriving(2));
    assert_eq!(town.resumed(2), Some(false));
    town.kill(1);
    town.wait(3, "get key-0", "150");
    town.wait(2, "get key-49", "199");

    // Known elsewhere, it does not begin.
    town.ports[1] = free::<1>()[0];
    let refused = Process::start(town.setup(1)).err().expect("the others know it at another address");
    assert!(refused.to_string().contains("the others know this process at"), "{refused}");
}

/// A cell whose place another one took while it was down is out, and its directory begins anew.
#[test]
fn a_cell_that_is_out_comes_back_as_another_process() {
    let mut town = Town::new();
    (0..4).for_each(|at| town.start(at));
    for at in 1..=3 {
        wait_for("it is a cell", || !town.arriving(at));
    }
    town.wait(1, "create", "Ok(())");
    town.wait(2, "put first 1", "done");
    let before = town.process(3).id();
    town.kill(3);
    // The same node with an empty directory.
    let aside = town.directory.path().join("aside");
    fs::rename(town.place(3), &aside).unwrap();
    town.start(3);
    wait_for("it has copied its keys", || !town.arriving(3));
    town.kill(3);
    fs::remove_dir_all(town.place(3)).unwrap();
    fs::rename(&aside, town.place(3)).unwrap();
    town.start(3);
    assert_eq!(town.process(3).id(), before);
    let end = town.process(3).ended().recv_timeout(Duration::from_secs(30));
    assert!(matches!(end, Ok(End::Wedged | End::OlderCopy(_))), "{end:?}");
    if end == Ok(End::Wedged) {
        town.kill(3);
        town.start(3);
        assert_ne!(town.process(3).id(), before);
        wait_for("it has copied its keys", || !town.arriving(3));
        town.wait(3, "get first", "1");
    }
}

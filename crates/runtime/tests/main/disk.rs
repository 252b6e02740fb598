//! Processes with a disk: durable records come back, waiting messages keep their order, and a failure ends
//! the process.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    panic::AssertUnwindSafe,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes, BytesMut};
use crossbeam_channel::{Receiver, unbounded};
use quorate_protocol::{
    Anyone, Context, Destination, Generation, Incarnation, Input, Policy, ProcessId, Protocol, Sink, Ticket,
    Time,
    ecast::Fence,
    journal,
    wire::{Wire, WireError, take_u64},
};
use quorate_runtime::{
    CommandError, Config, Handle, Host, Reactor,
    disk::{
        Directory, DirectoryState, Disk, DiskError, Files, OpenError, Opened, Settings,
        faults::{Faults, FaultyFiles, UnsyncedFiles},
    },
};
use tempfile::TempDir;

use crate::chat::{DOMAIN, PATIENCE, config, eventually, id};

/// A number, as message and as record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry(u64);

impl Wire for Entry {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(self.0);
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        Ok(Entry(take_u64(input)?))
    }
}

/// A protocol that writes and sends on command.
#[derive(Default)]
struct Diary {
    fence: Option<Fence>,
}

enum Command {
    Reach(ProcessId, String),
    /// Write a number.
    Write(u64),
    /// Write a number, and send it when the record is durable.
    Durable(Vec<ProcessId>, u64),
    /// Send a number, after earlier messages that wait for the disk.
    Plain(ProcessId, u64),
    /// Send a number at once.
    Aside(ProcessId, u64),
    Adopt(Fence),
    /// Release all records before this one.
    Collect(Ticket),
}

#[derive(Debug, PartialEq)]
enum Event {
    Linked,
    Unlinked,
    Heard(u64),
    Persisted(Ticket),
    Failed(String),
}

impl Protocol for Diary {
    type Message = Entry;
    type Record = Entry;
    type Command = Command;
    type Event = Event;

    fn handle(&mut self, _: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        match input {
            Input::Command(Command::Reach(peer, address)) => out.reach(peer, &address),
            Input::Command(Command::Write(number)) => {
                out.persist(Entry(number));
            }
            Input::Command(Command::Durable(to, number)) => {
                let ticket = out.persist(Entry(number));
                out.send(Destination::Many(to), Entry(number), Some(ticket));
            }
            Input::Command(Command::Plain(to, number)) => out.send(Destination::One(to), Entry(number), None),
            Input::Command(Command::Aside(to, number)) => out.send_aside(Destination::One(to), Entry(number)),
            Input::Command(Command::Adopt(fence)) => {
                self.fence = Some(fence);
                out.adopt(Arc::new(fence));
            }
            Input::Command(Command::Collect(before)) => out.collect(before, &[]),
            Input::Receive { message, .. } => out.emit(Event::Heard(message.0)),
            Input::Persisted(ticket) => out.emit(Event::Persisted(ticket)),
            Input::Linked { .. } => out.emit(Event::Linked),
            Input::Unlinked { .. } => out.emit(Event::Unlinked),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn policy(&self) -> Arc<dyn Policy> {
        match self.fence {
            Some(fence) => Arc::new(fence),
            None => Arc::new(Anyone),
        }
    }
}

struct EventHandler(crossbeam_channel::Sender<Event>);

impl Host<Diary> for EventHandler {
    fn event(&mut self, event: Event, _: Time) {
        let _ = self.0.send(event);
    }

    fn disk_failed(&mut self, error: &DiskError) {
        let _ = self.0.send(Event::Failed(error.to_string()));
    }
}

struct Process {
    id: ProcessId,
    handle: Handle<Diary>,
    events: Receiver<Event>,
}

impl Process {
    fn start(disk: Disk) -> Process {
        Process::with(disk, config(id(1)))
    }

    fn with(disk: Disk, config: Config) -> Process {
        let (sender, events) = unbounded();
        let id = disk.process();
        let config = Config { me: id, ..config };
        let handle =
            Reactor::start_with(Diary::default(), EventHandler(sender), config, Some(disk), None).unwrap();
        Process { id, handle, events }
    }

    fn in_memory() -> Process {
        Process::in_memory_as(config(id(9)))
    }

    fn in_memory_as(config: Config) -> Process {
        let (sender, events) = unbounded();
        let id = config.me;
        let handle = Reactor::start(Diary::default(), EventHandler(sender), config).unwrap();
        Process { id, handle, events }
    }

    fn command(&self, command: Command) {
        assert!(self.handle.command(command).is_ok());
    }

    #[track_caller]
    fn next(&self) -> Event {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    /// Waits until `ticket` records are durable.
    #[track_caller]
    fn persisted(&self, ticket: u64) {
        while self.next() != Event::Persisted(Ticket(ticket)) {}
    }

    /// Links the process with `peer`.
    #[track_caller]
    fn reach(&self, peer: &Process) {
        self.command(Command::Reach(peer.id, peer.handle.addresses()[0].to_string()));
        assert_eq!((self.next(), peer.next()), (Event::Linked, Event::Linked));
    }
}

const NODE: u64 = 1;

fn small() -> Settings {
    Settings {
        journal: journal::Settings { segment_bytes: 4096, ..Default::default() },
        ..Settings::default()
    }
}

fn open(place: &TempDir) -> Opened {
    Disk::open(place.path(), DOMAIN, NODE, small()).unwrap()
}

fn faulty(place: &TempDir, settings: Settings) -> (Disk, Faults) {
    let faults = Faults::default();
    let files = |files| Box::new(FaultyFiles::new(files, faults.clone())) as Box<dyn Files>;
    (Disk::open_on(place.path(), files, DOMAIN, NODE, settings).unwrap().disk, faults)
}

fn numbers(records: &[(Ticket, Bytes)]) -> Vec<u64> {
    records.iter().map(|(_, record)| Entry::decode(&mut record.clone()).unwrap().0).collect()
}

fn segments(place: &Path) -> Vec<std::path::PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "segment"));
    paths.sort();
    paths
}

#[test]
fn records_come_back() {
    let place = tempfile::tempdir().unwrap();
    let Opened { disk, records, found } = open(&place);
    assert!(records.is_empty() && found == DirectoryState::Nothing);
    let first = Process::start(disk);
    (0..500).for_each(|number| first.command(Command::Write(number)));
    first.persisted(500);
    first.handle.stop().unwrap();
    assert!(segments(place.path()).len() > 2);
    for path in segments(place.path()) {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    for life in 0..3 {
        let Opened { disk, records, found } = open(&place);
        assert_eq!(disk.process(), first.id);
        assert!(matches!(found, DirectoryState::Records { .. }), "{found:?}");
        assert_eq!(numbers(&records), (0..500 + life).collect::<Vec<_>>());
        let again = Process::start(disk);
        again.command(Command::Write(500 + life));
        again.persisted(501 + life);
        again.handle.stop().unwrap();
    }
}

/// A process that writes little and restarts often does not leave a full-length segment each time.
#[test]
fn reserved_space_of_a_segment_is_given_back() {
    let place = tempfile::tempdir().unwrap();
    for _ in 0..6 {
        let process =
            Process::start(Disk::open(place.path(), DOMAIN, NODE, Settings::default()).unwrap().disk);
        process.command(Command::Write(1));
        assert!(matches!(process.next(), Event::Persisted(_)));
        process.handle.stop().unwrap();
    }
    let Opened { records, .. } = open(&place);
    let bytes: u64 = segments(place.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(records.len() == 6 && bytes < 4096, "{} records, {bytes} bytes", records.len());
}

/// Released segments are overwritten. A restart does not take their old contents for records.
#[test]
fn segments_are_written_over() {
    let place = tempfile::tempdir().unwrap();
    for life in 0..3 {
        let process = Process::start(open(&place).disk);
        for round in 0..20 {
            let begin = 1000 * life + 50 * round;
            (begin..begin + 50).for_each(|number| process.command(Command::Write(number)));
            process.persisted(begin + 50);
            process.command(Command::Collect(Ticket(begin + 1)));
        }
        process.handle.stop().unwrap();
        let Opened { records, found, .. } = open(&place);
        assert!(matches!(found, DirectoryState::Records { .. }), "{found:?}");
        let (numbers, end) = (numbers(&records), 1000 * (life + 1));
        assert_eq!(numbers, (numbers[0]..end).collect::<Vec<_>>());
        assert!(numbers[0] > 1000 * life && segments(place.path()).len() < 10, "{}", numbers[0]);
    }
}

#[test]
fn the_pass_of_a_process_is_kept_on_disk() {
    let place = tempfile::tempdir().unwrap();
    let process = Process::start(open(&place).disk);
    let generation = Generation { number: 3, survivor: Incarnation(7) };
    let fence = Fence::of_member(generation);
    process.command(Command::Adopt(fence));
    process.command(Command::Write(1));
    process.persisted(1);
    process.handle.stop().unwrap();
    assert_eq!(open(&place).disk.pass(), Some(&fence.pass()));
    let again = AssertUnwindSafe(|| Process::start(open(&place).disk));
    let refused = std::panic::catch_unwind(again);
    assert!(refused.is_err(), "nobody goes on under that name who shows something else");
}

/// One peer receives its messages in the order of sending, except those sent aside. Other peers do not wait.
#[test]
fn a_message_that_waits_for_the_disk_delays_later_messages_to_its_peer() {
    let place = tempfile::tempdir().unwrap();
    let (disk, faults) = faulty(&place, small());
    let (writer, waiting, other) = (Process::start(disk), Process::in_memory(), Process::in_memory());
    writer.reach(&waiting);
    writer.reach(&other);
    faults.slow(Duration::from_millis(300));
    let begun = Instant::now();
    writer.command(Command::Durable(vec![waiting.id], 1));
    writer.command(Command::Plain(waiting.id, 2));
    writer.command(Command::Aside(waiting.id, 3));
    writer.command(Command::Plain(other.id, 4));
    assert_eq!((other.next(), waiting.next()), (Event::Heard(4), Event::Heard(3)));
    assert!(begun.elapsed() < Duration::from_millis(300), "they did not wait");
    assert_eq!((waiting.next(), waiting.next()), (Event::Heard(1), Event::Heard(2)));
    assert!(begun.elapsed() >= Duration::from_millis(300), "not before it is durable");
    // A message to several processes, this one included.
    writer.command(Command::Durable(vec![waiting.id, other.id, writer.id], 5));
    assert_eq!((waiting.next(), other.next()), (Event::Heard(5), Event::Heard(5)));
    eventually("it hears itself", || writer.events.try_iter().any(|event| event == Event::Heard(5)));
}

/// A message that waits for a session is lost when that session ends, and is not sent in the next one.
#[test]
fn a_message_that_waits_for_an_ended_session_is_dropped() {
    let place = tempfile::tempdir().unwrap();
    let (disk, faults) = faulty(&place, small());
    let (writer, peer) = (Process::start(disk), Process::in_memory());
    writer.reach(&peer);
    faults.slow(Duration::from_secs(6));
    writer.command(Command::Durable(vec![peer.id], 1));
    let address = peer.handle.addresses()[0];
    peer.handle.stop().unwrap();
    // To the writer it is still the same process.
    let peer = Process::in_memory_as(Config { listen: vec![address], ..config(peer.id) });
    assert_eq!((writer.next(), writer.next()), (Event::Unlinked, Event::Linked));
    assert_eq!(peer.next(), Event::Linked);
    writer.command(Command::Durable(vec![peer.id], 2));
    assert_eq!(peer.next(), Event::Heard(2));
    assert_eq!(writer.next(), Event::Persisted(Ticket(1)));
}

#[test]
fn a_failed_operation_ends_the_process() {
    let ways = [
        ("sync", io::ErrorKind::Other, "the disk failed: cannot sync"),
        ("write", io::ErrorKind::StorageFull, "the disk is full: cannot write"),
        ("create", io::ErrorKind::StorageFull, "the disk is full: cannot create"),
        ("write", io::ErrorKind::ReadOnlyFilesystem, "the disk is read-only: cannot write"),
    ];
    for (operation, kind, message) in ways {
        let place = tempfile::tempdir().unwrap();
        let (disk, faults) = faulty(&place, small());
        let (writer, peer) = (Process::start(disk), Process::in_memory());
        writer.reach(&peer);
        writer.command(Command::Durable(vec![peer.id], 1));
        writer.persisted(1);
        assert_eq!(peer.next(), Event::Heard(1));
        faults.fail(operation, kind);
        for number in 2..600 {
            // The process may have ended already.
            let _ = writer.handle.command(Command::Durable(vec![peer.id], number));
        }
        let failed = loop {
            match writer.next() {
                Event::Failed(failed) => break failed,
                Event::Persisted(_) if operation == "create" => {}
                other => panic!("{other:?} after the disk failed to {operation}"),
            }
        };
        assert!(failed.starts_with(message), "{failed}");
        writer.handle.wait().unwrap();
        let heard: Vec<Event> = std::iter::from_fn(|| match peer.next() {
            Event::Unlinked => None,
            event => Some(event),
        })
        .collect();
        let kept = numbers(&open(&place).records);
        assert!(operation == "create" || heard.is_empty(), "{heard:?}");
        // Every number that the peer received is in the journal.
        let received = heard.iter().map(|event| if let Event::Heard(number) = event { *number } else { 0 });
        assert!(received.max().unwrap_or(1) <= *kept.last().unwrap());
    }
}

/// A process whose disk is far behind takes no more commands, so its senders wait. Nothing is lost.
#[test]
fn a_slow_disk_delays_commands() {
    let place = tempfile::tempdir().unwrap();
    let (disk, faults) = faulty(&place, Settings { waiting_bytes_max: 16 << 10, ..small() });
    let mut config = config(id(1));
    config.limits.commands_max = 64;
    config.limits.commands_per_turn = 64;
    let process = Process::with(disk, config);
    faults.slow(Duration::from_millis(50));
    let (mut taken, mut refused) = (0, 0);
    while refused < 100 {
        match process.handle.try_command(Command::Write(taken)) {
            Ok(()) => taken += 1,
            Err(CommandError::Full(_)) => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(CommandError::Stopped(_)) => panic!("it runs"),
        }
    }
    faults.slow(Duration::ZERO);
    process.persisted(taken);
    process.handle.stop().unwrap();
    assert_eq!(numbers(&open(&place).records), (0..taken).collect::<Vec<_>>());
}

/// Gathered records are written together, as soon as a message waits for one of them. The end of the process
/// writes the rest.
#[test]
fn records_gather_until_a_message_waits() {
    let place = tempfile::tempdir().unwrap();
    let settings = Settings { gathering: Duration::from_secs(3600), ..small() };
    let disk = Disk::open(place.path(), DOMAIN, NODE, settings).unwrap().disk;
    let (process, peer) = (Process::with(disk, config(id(1))), Process::in_memory());
    process.reach(&peer);
    (0..3).for_each(|number| process.command(Command::Write(number)));
    process.command(Command::Plain(peer.id, 7));
    assert_eq!(peer.next(), Event::Heard(7));
    assert!(process.events.is_empty(), "nothing is durable yet");
    process.command(Command::Durable(vec![peer.id], 3));
    assert_eq!((process.next(), peer.next()), (Event::Persisted(Ticket(4)), Event::Heard(3)));
    process.command(Command::Write(4));
    // A process that stops loses queued commands. The message shows that this command is executed.
    process.command(Command::Plain(peer.id, 8));
    assert_eq!(peer.next(), Event::Heard(8));
    process.handle.stop().unwrap();
    assert_eq!(numbers(&open(&place).records), (0..5).collect::<Vec<_>>());
}

/// Records that gather are written at the latest after the time of the settings, or when they are many.
#[test]
fn records_gather_for_a_time_and_up_to_a_size() {
    let place = tempfile::tempdir().unwrap();
    for (gathering, count) in [(Duration::from_millis(20), 1), (Duration::from_secs(3600), 4000)] {
        let Opened { disk, records, .. } =
            Disk::open(place.path(), DOMAIN, NODE, Settings { gathering, ..small() }).unwrap();
        let before = records.len() as u64;
        let process = Process::start(disk);
        (0..count).for_each(|number| process.command(Command::Write(number)));
        assert!(matches!(process.next(), Event::Persisted(through) if through.0 > before));
        process.handle.stop().unwrap();
    }
}

#[test]
fn one_directory_has_one_process() {
    let place = tempfile::tempdir().unwrap();
    let process = Process::start(open(&place).disk);
    let pid = std::process::id();
    match Disk::open(place.path(), DOMAIN, NODE, small()) {
        Err(OpenError::Locked { pid: holder, .. }) => assert_eq!(holder, Some(pid)),
        other => panic!("{other:?}"),
    }
    process.handle.stop().unwrap();
    open(&place);
}

#[test]
fn directories_of_others_are_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    drop(open(&place));
    let refused = |domain, node| match Disk::open(place.path(), domain, node, small()) {
        Err(refused) => refused.to_string(),
        Ok(opened) => panic!("{opened:?}"),
    };
    let message = refused(DOMAIN, 2);
    assert!(message.contains("belongs to node 1") && message.contains("this is node 2"), "{message}");
    let message = refused(quorate_protocol::DomainId(0xe0), NODE);
    assert!(message.contains(&DOMAIN.to_string()), "{message}");
    let path = place.path().join("identity");
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("format 4", "format 9")).unwrap();
    let message = refused(DOMAIN, NODE);
    assert!(message.contains("format 9"), "{message}");
}

/// A flipped byte in a durable record leads to a new incarnation. The old journal is kept.
#[test]
fn a_damaged_journal_begins_a_new_process() {
    let place = tempfile::tempdir().unwrap();
    let process = Process::start(open(&place).disk);
    (0..10).for_each(|number| process.command(Command::Write(number)));
    process.persisted(10);
    process.handle.stop().unwrap();
    let path = &segments(place.path())[0];
    let mut bytes = fs::read(path).unwrap();
    bytes[200] ^= 1;
    fs::write(path, bytes).unwrap();
    let Opened { disk, records, found } = open(&place);
    assert!(matches!(found, DirectoryState::Damaged(journal::Damage::Rotten { .. })), "{found:?}");
    assert!(records.is_empty() && disk.process() != process.id && disk.process().node == NODE);
    let fresh = disk.process();
    let process = Process::start(disk);
    process.command(Command::Write(77));
    process.persisted(1);
    process.handle.stop().unwrap();
    let Opened { disk, records, .. } = open(&place);
    assert_eq!((disk.process(), numbers(&records)), (fresh, vec![77]));
    let aside = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(aside.into_iter().any(|name| name.to_string_lossy().ends_with(".segment.aside")));
}

/// Unsynced bytes are missing after a crash. A partial write is a torn tail.
#[test]
fn a_journal_ends_at_a_file_that_reached_the_disk_late() {
    let place = tempfile::tempdir().unwrap();
    let mut late = UnsyncedFiles::new(Directory::create(place.path()).unwrap());
    late.create("a", 100).unwrap();
    late.write("a", 0, &[Bytes::from_static(b"one "), Bytes::from_static(b"two")]).unwrap();
    assert!(late.read("a").unwrap().iter().all(|byte| *byte == 0));
    late.sync("a").unwrap();
    assert_eq!(late.read("a").unwrap()[..8], *b"one two\0");
}

/// Copies the files of a directory, as a snapshot of a machine would.
fn copied(place: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(place).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

/// The directory is copied while the process runs or between two runs. The process that starts from the copy
/// meets a peer that has a disk or none. It must end with an error that names the directory, whichever side
/// dials, and the newest directory must still work.
#[test]
fn an_older_copy_is_not_gone_on_from() {
    for (while_it_runs, witness_restarts, dials) in
        [(true, true, true), (false, true, false), (true, false, false), (false, false, true)]
    {
        let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut process = Process::start(open(&place).disk);
        let witness = || Disk::open(other.path(), DOMAIN, 2, small()).unwrap().disk;
        let mut peer = if witness_restarts { Process::start(witness()) } else { Process::in_memory() };
        peer.command(Command::Write(0));
        peer.persisted(1);
        process.command(Command::Write(0));
        process.persisted(1);
        if !while_it_runs {
            process.handle.stop().unwrap();
        }
        let copy = copied(place.path());
        if !while_it_runs {
            process = Process::start(open(&place).disk);
        }
        process.reach(&peer);
        process.command(Command::Write(1));
        process.persisted(2);
        // The process announces its last record now and then, and when it stops.
        process.handle.stop().unwrap();
        eventually("it is heard that the process stopped", || {
            peer.events.try_iter().any(|event| event == Event::Unlinked)
        });
        if witness_restarts {
            peer.handle.stop().unwrap();
            peer = Process::start(witness());
        }

        let meet = |process: &Process| {
            let (one, other) = if dials { (process, &peer) } else { (&peer, process) };
            one.command(Command::Reach(other.id, other.handle.addresses()[0].to_string()));
        };
        // Repeated starts and further records do not help the older copy.
        for start in 0..3 {
            let older = Process::start(open(&copy).disk);
            assert_eq!(older.id, process.id, "nothing in the directory tells that it is an older copy");
            (0..5).for_each(|number| older.command(Command::Write(number)));
            older.persisted(1 + 5 * (start + 1));
            meet(&older);
            let failed = loop {
                match older.next() {
                    Event::Failed(why) => break why,
                    event => assert!(matches!(event, Event::Persisted(_) | Event::Unlinked), "{event:?}"),
                }
            };
            let names = |what: &str| failed.contains(what);
            let path = copy.path().display().to_string();
            assert!(names(&path) && names("is an older copy") && names("remove the directory"), "{failed}");
            older.handle.wait().unwrap();
        }
        let newest = Process::start(open(&place).disk);
        meet(&newest);
        assert_eq!(newest.next(), Event::Linked, "the newest copy goes on");
    }
}

//! Services on disks: the hosts run in processes of their own, and the tests kill them.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use quorate::{
    Error, Name, Node, Wait,
    service::{Begin, Cx, Executed, Kind, Service, Stub},
};
use serde::{Deserialize, Serialize};

/// The number of times that each number was put. A checkpoint of this state is small, and its log is long.
#[derive(Default, Serialize, Deserialize)]
struct Seen(BTreeMap<u64, u32>);

#[derive(Debug, Serialize, Deserialize)]
enum StoreRequest {
    Put(u64),
    /// Returns the numbers that were put more than once, and the count of different numbers.
    Look,
}

impl Service for Seen {
    type Request = StoreRequest;
    type Reply = (Vec<u64>, u64);
    type Delta = u64;
    type Undo = u64;

    fn execute(&self, request: &StoreRequest, _: &mut Cx<'_>) -> Executed<Self> {
        match request {
            StoreRequest::Put(number) => Executed::Changed((Vec::new(), 0), *number),
            StoreRequest::Look => {
                let often = self.0.iter().filter(|(_, times)| **times > 1).map(|(number, _)| *number);
                Executed::Unchanged((often.collect(), self.0.len() as u64))
            }
        }
    }

    fn apply(&mut self, number: &u64) -> u64 {
        *self.0.entry(*number).or_default() += 1;
        *number
    }

    fn revert(&mut self, number: u64) {
        let times = self.0.get_mut(&number).expect("it was put");
        *times -= 1;
        if *times == 0 {
            self.0.remove(&number);
        }
    }

    fn kind(request: &StoreRequest) -> Kind {
        match request {
            StoreRequest::Put(_) => Kind::Write,
            StoreRequest::Look => Kind::Read,
        }
    }
}

pub(crate) const NAME: &str = "seen";

/// The environment variable that makes this program a host. It holds the host's directory, its address and
/// its seed.
pub(crate) const HOST: &str = "QUORATE_TEST_HOST";

/// A host in a process of its own. The process ends when its standard input ends or when the test kills it.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Process {
    /// Starts a host whose process runs `test`, which begins with [`host`].
    pub(crate) fn start(test: &str, directory: &Path, address: &str, seed: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(HOST, format!("{}\n{address}\n{seed}", directory.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("a host says where it listens").unwrap();
            if let Some((_, address)) = line.split_once("listens at ") {
                break String::from(address);
            }
        };
        Process { child, address }
    }

    /// Ends the process without warning. To the program this equals a power cut, except that the operating
    /// system survives.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a host of a service in its own process.
pub(crate) fn host<S: Service + Default>(words: &str) {
    let [directory, address, seed] = words.split('\n').collect::<Vec<_>>()[..] else { panic!("{words}") };
    let seeds = [seed].into_iter().filter(|seed| !seed.is_empty());
    let builder = Node::builder().listen(address).seeds(seeds.clone()).directory(directory).durable();
    let host = builder.start().wait().unwrap();
    // Every start uses the same arguments, as a supervisor does.
    let begin = if seed.is_empty() { Begin::Found { replicas: 3 } } else { Begin::Join };
    host.serve(NAME, S::default(), begin).wait().unwrap();
    println!("listens at {}", host.address());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Returns a stub of a new client with these seeds.
fn client(addresses: &[String]) -> Stub<Seen> {
    let client = Node::builder().seeds(addresses).start().wait().unwrap();
    client.service::<Seen>(NAME).unwrap()
}

/// Puts numbers until `stop` is set, and asks again for each unknown outcome. Returns the count of successful
/// puts.
fn put(seen: &Stub<Seen>, numbers: impl Iterator<Item = u64>, stop: &AtomicBool, count: &AtomicU64) -> u64 {
    let mut put = 0;
    for number in numbers.take_while(|_| !stop.load(Ordering::Relaxed)) {
        let mut outcome = seen.call(&StoreRequest::Put(number)).wait();
        while let Err(Error::MaybeApplied { id: Some(Name::Call(id)), .. }) = outcome {
            outcome = seen.again(id).wait();
        }
        match outcome {
            Ok(_) => {
                put += 1;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::NotSent { .. }) => {}
            Err(other) => panic!("{number}: {other:?}"),
        }
    }
    put
}

#[test]
fn a_power_loss_of_all_hosts_loses_nothing_answered() {
    if let Some(words) = std::env::var_os(HOST) {
        return host::<Seen>(words.to_str().unwrap());
    }
    let test = "durable::a_power_loss_of_all_hosts_loses_nothing_answered";
    let place = tempfile::tempdir().unwrap();
    let directory = |number: usize| place.path().join(number.to_string());
    let mut processes = vec![Process::start(test, &directory(0), "127.0.0.1:0", "")];
    let seed = processes[0].address.clone();
    for number in 1..3 {
        processes.push(Process::start(test, &directory(number), "127.0.0.1:0", &seed));
    }
    let addresses: Vec<String> = processes.iter().map(|process| process.address.clone()).collect();
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..4_u64)
        .map(|caller| {
            let client = Node::builder().seeds(&addresses).call_wait(Duration::from_secs(30));
            let client = client.start().wait().unwrap();
            let seen = client.service::<Seen>(NAME).unwrap();
            let (stop, count) = (stop.clone(), count.clone());
            thread::spawn(move || put(&seen, (0..).map(|number| number * 4 + caller), &stop, &count))
        })
        .collect();
    for round in 0..3 {
        let before = count.load(Ordering::Relaxed);
        let deadline = Instant::now() + Duration::from_secs(40);
        while count.load(Ordering::Relaxed) < before + 100 {
            assert!(Instant::now() < deadline, "calls go on after {round} power losses");
            thread::sleep(Duration::from_millis(5));
        }
        processes.iter_mut().for_each(Process::kill);
        for (number, process) in processes.iter_mut().enumerate() {
            let seed = if number == 0 { "" } else { &seed };
            *process = Process::start(test, &directory(number), &addresses[number], seed);
        }
    }
    stop.store(true, Ordering::Relaxed);
    let put: u64 = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
    let seen = client(&addresses);
    assert_eq!(seen.call(&StoreRequest::Look).wait(), Ok((Vec::new(), put)), "each that was put, once");
}

#[test]
fn a_host_continues_from_its_directory_and_founds_nothing_twice() {
    let place = tempfile::tempdir().unwrap();
    let start =
        |address: &str| Node::builder().listen(address).directory(place.path()).durable().start().wait();
    let first = start("127.0.0.1:0").unwrap();
    first.serve(NAME, Seen::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    let address = first.address().to_string();
    let seen = client(std::slice::from_ref(&address));
    seen.call(&StoreRequest::Put(1)).wait().unwrap();
    let id = first.replica_status(NAME).unwrap().me;
    assert!(matches!(start("127.0.0.1:0"), Err(Error::DirectoryInUse { .. })));
    drop(first);

    let elsewhere = start("127.0.0.1:0").unwrap();
    let refused = elsewhere.serve(NAME, Seen::default(), Begin::Found { replicas: 1 }).wait();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains(&format!("at {address}, and now the host would listen at")), "{refused}");
    let other = Seen([(7, 1)].into());
    drop(elsewhere);

    let again = start(&address).unwrap();
    let refused = again.serve(NAME, other, Begin::Found { replicas: 1 }).wait().unwrap_err().to_string();
    assert!(refused.contains("another first state"), "{refused}");
    again.serve(NAME, Seen::default(), Begin::Found { replicas: 1 }).wait().unwrap();
    assert_eq!(again.replica_status(NAME).unwrap().me, id, "it is the process that it was");
    assert_eq!(seen.call(&StoreRequest::Look).wait(), Ok((Vec::new(), 1)));
    drop(again);

    std::fs::remove_dir_all(place.path().join("services")).unwrap();
    let without = start(&address).unwrap();
    let refused =
        without.serve(NAME, Seen::default(), Begin::Found { replicas: 1 }).wait().unwrap_err().to_string();
    assert!(refused.contains("was founded from"), "{refused}");
}

#[test]
fn a_host_without_a_disk_does_not_join_hosts_with_disks() {
    let place = tempfile::tempdir().unwrap();
    let first = Node::builder().directory(place.path()).durable().start().wait().unwrap();
    first.serve(NAME, Seen::default(), Begin::Found { replicas: 3 }).wait().unwrap();
    let second = Node::builder().seeds([first.address().to_string()]).start().wait().unwrap();
    second.serve(NAME, Seen::default(), Begin::Join).wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let why = loop {
        if let Some(why) = second.replica_status(NAME).unwrap().ended {
            break why;
        }
        assert!(Instant::now() < deadline, "it is told");
        thread::sleep(Duration::from_millis(5));
    };
    assert!(why.contains("on disk"), "{why}");
}

//! A group's ledger that outlives its members. A key seals the entries, and files keep the entries while the
//! group has no members. Members can claim locks of the group.
//!
//! ```text
//! quorate up                        # or any cluster; it prints the addresses of its routers
//! head -c 32 /dev/urandom | xxd -p -c 64 > key
//! cargo run --release -p quorate --example ledger -- --routers 127.0.0.1:24701 --key key --file ann.ledger
//! cargo run --release -p quorate --example ledger -- --routers 127.0.0.1:24701 --key key --file bob.ledger
//! ```
//!
//! Each line of standard input is a command. The answer is `done`, or `refused` with the reason.
//!
//! | | |
//! |---|---|
//! | `soft TEXT`, `ordered TEXT`, `safe TEXT` | enters the text |
//! | `load TEXT SECONDS` | enters the text again and again, at all strengths; prints `loaded` at the end |
//! | `flush`, `save` | makes all entries durable: at all members (`flush`), or in files (`save`) |
//! | `ask PREFIX` | asks all members for the entries with this prefix |
//! | `list`, `count` | shows this member's entries or their number, and its number of refused sends |
//! | `lock NAME`, `unlock NAME` | claims a lock, and reports when the member gets it; releases the lock |
//! | `rotate FILE` | makes the group use the key in this file |
//! | `figures` | shows the counters of the process |
//!
//! A member that the others dropped while it was cut off joins again by itself. The ledger then lacks the
//! entries that the member made while it was cut off. At the end of its input a member leaves. `checks/group`
//! tests this program.

use std::{
    collections::BTreeMap,
    env, fmt, fs,
    io::{self, BufRead, Write},
    process,
    sync::{
        Arc, Mutex,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use quorate::{
    Error, Node, Wait,
    group::{Answer, Group, Handlers, Key, Lock, Member, SendStrength, Want},
};
use serde::{Serialize, de::DeserializeOwned};

/// Pause between two checks of the member's state.
const LOOK_EVERY: Duration = Duration::from_millis(20);

struct Options {
    routers: String,
    group: String,
    /// The address at which the member listens for other members, if not a loopback address.
    listen: Option<String>,
    key: Option<String>,
    file: Option<String>,
    /// Version of the entries. Entries of version 2 also have an amount, so a member of version 1 and a
    /// member of version 2 cannot be in one group.
    version: u32,
}

fn main() {
    let Some(options) = options() else {
        eprintln!(
            "usage: ledger --routers ADDRESSES [--group NAME] [--listen ADDRESS] [--key FILE] [--file FILE] [--version 1|2]"
        );
        process::exit(2);
    };
    let ended = match options.version {
        1 => Program::start(options, |text| text.to_owned()).and_then(Program::run),
        _ => Program::start(options, |text| (text.to_owned(), 0_u64)).and_then(Program::run),
    };
    if let Err(error) = ended {
        eprintln!("{error}");
        process::exit(1);
    }
}

fn options() -> Option<Options> {
    let (mut words, mut given) = (env::args().skip(1), BTreeMap::new());
    while let Some(word) = words.next() {
        given.insert(word, words.next()?);
    }
    let options = Options {
        routers: given.remove("--routers")?,
        group: given.remove("--group").unwrap_or_else(|| String::from("ledger")),
        listen: given.remove("--listen"),
        key: given.remove("--key"),
        file: given.remove("--file"),
        version: given.remove("--version").map_or(Some(1), |version| version.parse().ok())?,
    };
    (given.is_empty() && (1..=2).contains(&options.version)).then_some(options)
}

/// The ledger. A query asks for the entries with a prefix.
type Ledger<E> = Handlers<Vec<E>, E, String, Vec<String>>;

struct Program<E: Serialize + DeserializeOwned + Send + 'static> {
    node: Node,
    group: Group,
    entry: fn(&str) -> E,
    member: Member<Ledger<E>>,
    locks: Arc<Mutex<BTreeMap<String, Lock>>>,
    /// Number of this member's entries that were refused.
    refused: u64,
}

impl<E> Program<E>
where
    E: Serialize + DeserializeOwned + fmt::Debug + Send + 'static,
{
    fn start(options: Options, entry: fn(&str) -> E) -> Result<Self, Error> {
        let mut node = Node::builder().routers(options.routers.split(','));
        if let Some(listen) = options.listen {
            node = node.listen(listen).insecure(true);
        }
        let node = node.start().wait()?;
        let mut group = node.group(options.group);
        if let Some(file) = options.key {
            group = group.key(key(&file)?);
        }
        if let Some(file) = options.file {
            group = group.checkpoint_file(file);
        }
        let member = group.join(ledger()).wait()?;
        Ok(Program { node, group, entry, member, locks: Arc::default(), refused: 0 })
    }

    fn run(mut self) -> Result<(), Error> {
        self.say_joined()?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut in_touch = true;
        loop {
            match lines.recv_timeout(LOOK_EVERY) {
                Ok(line) => match self.perform(&line) {
                    Ok(()) => say(format_args!("done {line}")),
                    Err(why) => say(format_args!("refused {line}: {why}")),
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if let Some(why) = self.member.ended() {
                say(format_args!("out {why}"));
                self.locks.lock().expect("nobody panics with it").clear();
                self.rejoin()?;
                in_touch = true;
            }
            let is = !matches!(self.member.read(|_| ()), Err(Error::OutOfTouch));
            if is != in_touch {
                say(if is { "in touch" } else { "out of touch" });
                in_touch = is;
            }
        }
        self.locks.lock().expect("nobody panics with it").clear();
        self.member.leave().wait()
    }

    /// Joins again, as soon as the routers can be reached.
    fn rejoin(&mut self) -> Result<(), Error> {
        loop {
            match self.group.join(ledger()).wait() {
                Ok(member) => self.member = member,
                Err(Error::Start { .. } | Error::Wedged { .. }) => {
                    thread::sleep(LOOK_EVERY);
                    continue;
                }
                Err(error) => return Err(error),
            }
            return self.say_joined();
        }
    }

    fn say_joined(&self) -> Result<(), Error> {
        let entries = self.member.read(|ledger| ledger.state().len())?;
        say(format_args!("joined {entries}"));
        Ok(())
    }

    fn perform(&mut self, line: &str) -> Result<(), Error> {
        let (verb, text) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "soft" | "ordered" | "safe" => {
                let strength = verb.parse().expect("the verb is a strength");
                let sent = send(&self.member, strength, (self.entry)(text));
                self.refused += u64::from(sent.is_err());
                sent
            }
            "load" => {
                let (text, seconds) = text.split_once(' ').unwrap_or((text, "1"));
                let seconds =
                    seconds.parse().map_err(|_| Error::NotSent { why: String::from("no seconds") })?;
                let (member, entry, text) = (self.member.clone(), self.entry, text.to_owned());
                thread::spawn(move || load(&member, entry, &text, Duration::from_secs_f64(seconds)));
                Ok(())
            }
            "flush" => self.member.flush().wait(),
            "save" => self.member.save().wait().map(drop),
            "ask" => {
                let answer = self.member.ordered_query(text.to_owned(), Want::All).wait()?;
                let found = answer.replies.iter().map(|replied| replied.reply.len()).max().unwrap_or(0);
                say(format_args!("asked {}, {found} entries", answer.replies.len()));
                Ok(())
            }
            "list" => self.member.read(|ledger| {
                ledger.state().iter().for_each(|entry| say(format_args!("entry {entry:?}")));
            }),
            "count" => {
                let entries = self.member.read(|ledger| ledger.state().len())?;
                say(format_args!("count {entries}, {} refused", self.refused));
                Ok(())
            }
            "lock" => {
                let (claim, locks, name) = (self.member.lock(text), self.locks.clone(), text.to_owned());
                thread::spawn(move || match claim.wait() {
                    Ok(lock) => {
                        say(format_args!("locked {name} {}", lock.fence()));
                        locks.lock().expect("nobody panics with it").insert(name, lock);
                    }
                    Err(why) => say(format_args!("not locked {name}: {why}")),
                });
                Ok(())
            }
            "unlock" => {
                drop(self.locks.lock().expect("nobody panics with it").remove(text));
                Ok(())
            }
            "rotate" => {
                let key = key(text)?;
                self.member.rotate(&key).wait()?;
                // If the member has to join again, it uses the new key.
                self.group = self.group.clone().key(key);
                Ok(())
            }
            "figures" => {
                self.node.group_metrics().render().lines().for_each(say);
                Ok(())
            }
            _ => Err(Error::NotSent { why: format!("there is no command {verb:?}") }),
        }
    }
}

fn ledger<E>() -> Ledger<E>
where
    E: Serialize + DeserializeOwned + fmt::Debug + Send + 'static,
{
    Handlers::new("ledger/1", Vec::new())
        .update(|entries: &mut Vec<E>, entry: E, _| entries.push(entry))
        .query(|entries, prefix: String, _| {
            let texts = entries.iter().map(|entry| format!("{entry:?}"));
            Answer::Now(texts.filter(|text| text.contains(&prefix)).collect())
        })
}

fn send<E>(member: &Member<Ledger<E>>, strength: SendStrength, entry: E) -> Result<(), Error>
where
    E: Serialize + DeserializeOwned + fmt::Debug + Send + 'static,
{
    member.send_as(strength, entry).wait().map(drop)
}

/// Enters numbered copies of the text, one after another, until `time` is over.
fn load<E>(member: &Member<Ledger<E>>, entry: fn(&str) -> E, text: &str, time: Duration)
where
    E: Serialize + DeserializeOwned + fmt::Debug + Send + 'static,
{
    let (until, mut entered, mut refused) = (Instant::now() + time, 0_u64, 0_u64);
    for strength in [SendStrength::Soft].into_iter().chain(SendStrength::ALL).cycle() {
        if Instant::now() > until {
            break;
        }
        match send(member, strength, entry(&format!("{text} {entered}"))) {
            Ok(()) => entered += 1,
            Err(why) => {
                if refused == 0 {
                    say(format_args!("refused {} while loading: {why}", strength.name()));
                }
                refused += 1;
            }
        }
    }
    say(format_args!("loaded {entered}, {refused} refused"));
}

fn key(file: &str) -> Result<Key, Error> {
    let digits = fs::read_to_string(file)
        .map_err(|error| Error::File { file: file.into(), why: error.to_string() })?;
    digits.parse()
}

fn say(line: impl fmt::Display) {
    let mut out = io::stdout().lock();
    // If nobody reads the output any longer, the line is dropped.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

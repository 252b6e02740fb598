//! A chat room. All members see the same words in the same order, and a joiner gets the earlier words.
//!
//! ```text
//! quorate up                        # or any cluster; it prints the addresses of its routers
//! cargo run --release -p quorate --example chat -- --routers 127.0.0.1:24701 ann
//! cargo run --release -p quorate --example chat -- --routers 127.0.0.1:24701 bob
//! ```
//!
//! Each line of standard input is a word. Kill a member: the others see it leave, and keep all words that
//! they have seen.

use std::{
    env,
    io::{self, BufRead},
    process,
    sync::{Arc, Mutex},
};

use quorate::{
    Error, Node, ProcessId, Wait,
    group::{Answer, Corrupt, Origin, Replica, Share, Snapshot, View},
};
use serde::{Deserialize, Serialize};

/// The room: all that was said.
struct Room {
    said: Vec<Line>,
    /// The lines that this program has printed. They are not part of the room's state.
    shown: Arc<Mutex<Shown>>,
}

/// The lines that this program has printed.
#[derive(Default)]
struct Shown {
    lines: usize,
}

#[derive(Clone, Serialize, Deserialize)]
struct Line {
    who: String,
    text: String,
}

impl Room {
    fn new() -> Room {
        Room { said: Vec::new(), shown: Arc::default() }
    }

    /// Prints the lines of the room that were not printed yet.
    fn show(&self) {
        let mut shown = self.shown.lock().expect("nobody panics who has it");
        for Line { who, text } in &self.said[shown.lines..] {
            println!("{who}: {text}");
        }
        shown.lines = self.said.len();
    }
}

impl Replica for Room {
    const NAME: &'static str = "chat/1";
    type Update = Line;
    type Query = ();
    type Reply = ();

    fn apply(&mut self, line: Line, _: &Origin) {
        self.said.push(line);
        self.show();
    }

    fn query(&self, (): (), _: Share) -> Answer<()> {
        Answer::Declined
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::of(&self.said)
    }

    fn restore(snapshot: &Snapshot) -> Result<Self, Corrupt> {
        Ok(Room { said: snapshot.read()?, ..Room::new() })
    }

    fn view(&mut self, view: &View) {
        self.show();
        let names = |processes: &[ProcessId]| {
            let names: Vec<String> = processes.iter().map(ProcessId::to_string).collect();
            names.join(", ")
        };
        println!(
            "-- {} here{}{}",
            view.members.len(),
            if view.joined.is_empty() { String::new() } else { format!("; came: {}", names(&view.joined)) },
            if view.left.is_empty() { String::new() } else { format!("; went: {}", names(&view.left)) },
        );
    }
}

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ["--routers", routers, name] = words[..] else {
        eprintln!("usage: chat --routers ADDRESSES NAME");
        process::exit(2);
    };
    if let Err(error) = chat(routers, name) {
        eprintln!("{error}");
        process::exit(1);
    }
}

fn chat(routers: &str, name: &str) -> Result<(), Error> {
    let node = Node::builder().routers(routers.split(',')).start().wait()?;
    let room = node.group("chat").join(Room::new()).wait()?;
    for text in io::stdin().lock().lines() {
        let Ok(text) = text else { break };
        // Once the send has succeeded, the end of this program does not lose the line.
        room.safe_send(Line { who: name.to_owned(), text }).wait()?;
    }
    node.leave().wait()?;
    Ok(())
}

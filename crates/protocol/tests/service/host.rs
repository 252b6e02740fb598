//! A host with a service of its own: a list of words, each with a random number appended.

use std::collections::VecDeque;

use bytes::Bytes;
use quorate_protocol::service::{Command, Event, Executed, TransactionId};

#[derive(Default)]
pub(crate) struct Host {
    pub(crate) words: Vec<String>,
    /// Words that are not chosen, in the order in which they were added, each with its work and transaction.
    unchosen: Vec<(u64, Option<TransactionId>, String)>,
    /// Works that wait until a script completes them, with their words.
    waiting: Vec<(u64, String)>,
    /// Whether the host completes nothing before the next checkpoint.
    rests: bool,
    /// Events that the host has not handled, oldest first.
    pub(crate) queue: VecDeque<Event>,
    /// Whether the host does nothing until a script says so.
    pub(crate) slow: bool,
    /// Whether the host has sent a result that has not reached the replica.
    pub(crate) busy: bool,
    giving: Option<VecDeque<String>>,
    coming: Vec<String>,
}

impl Host {
    /// Handles the next event, and returns the host's answer.
    pub(crate) fn step(&mut self, chance: u64) -> Option<Command> {
        match self.queue.pop_front()? {
            Event::Execute { work, request, read, transaction } => {
                let request = String::from_utf8(request.to_vec()).expect("requests of scripts are text");
                let words = request.split_once(':').unwrap_or((request.as_str(), ""));
                let result = match words {
                    ("add" | "grow", word) => {
                        assert!(!read, "adding is no read");
                        // The result of `grow` is much longer than the request.
                        let word = match (words.0, word.parse()) {
                            ("grow", Ok(letters)) => "w".repeat(letters),
                            _ => word.to_owned(),
                        };
                        let word = format!("{word}~{}", chance % 100);
                        self.words.push(word.clone());
                        self.unchosen.push((work, transaction, word.clone()));
                        Executed::Changed { reply: Bytes::from(word.clone()), change: Bytes::from(word) }
                    }
                    ("wait", word) => {
                        self.waiting.push((work, word.to_owned()));
                        return None;
                    }
                    ("get", _) => Executed::Unchanged { reply: Bytes::from(self.words.join(" ")) },
                    ("draw", _) => Executed::Unchanged { reply: Bytes::from((chance % 100).to_string()) },
                    _ => Executed::Rejected { reason: Bytes::from(format!("what is {request}")) },
                };
                return Some(Command::Executed { work, result });
            }
            Event::Chosen { work } => {
                // Works may end in any order.
                let place = self.unchosen.iter().position(|(of, ..)| *of == work);
                let mut places = 0..;
                self.unchosen.retain(|(of, transaction, _)| {
                    let is_chosen = match (places.next(), place) {
                        (Some(own), Some(place)) => own <= place,
                        _ => *of < work,
                    };
                    !is_chosen || transaction.is_some()
                });
            }
            Event::Commit { work, transaction } => {
                for (of, owner, _) in &mut self.unchosen {
                    if *owner == Some(transaction) {
                        (*of, *owner) = (work, None);
                    }
                }
                let result = Executed::Unchanged { reply: Bytes::new() };
                return Some(Command::Executed { work, result });
            }
            Event::Abort { transaction } => self.take_back(|owner| owner == Some(transaction)),
            Event::Revert => {
                self.take_back(|_| true);
                (self.waiting, self.rests) = (Vec::new(), false);
            }
            Event::Apply { changes, .. } => {
                assert!(self.unchosen.is_empty(), "a backup has nothing that is not chosen");
                let words = changes.iter().map(|change| String::from_utf8_lossy(change).into_owned());
                self.words.extend(words);
            }
            Event::Checkpoint { .. } => {
                self.rests = false;
                assert!(self.unchosen.is_empty(), "a checkpoint holds what is chosen");
                self.giving = Some(self.words.iter().cloned().collect());
            }
            Event::CheckpointPartWanted { checkpoint, .. } => {
                // Each part of a checkpoint is one word.
                let giving = self.giving.as_mut().expect("a checkpoint was taken");
                let bytes = Bytes::from(giving.pop_front().unwrap_or_default());
                return Some(Command::CheckpointPart { checkpoint, bytes, last: giving.is_empty() });
            }
            Event::Rest { rest } => {
                self.rests = true;
                return Some(Command::Rests { rest });
            }
            Event::CheckpointUnwanted => self.giving = None,
            Event::RestorePart { first, bytes } => {
                if first {
                    self.coming.clear();
                }
                if !bytes.is_empty() {
                    self.coming.push(String::from_utf8_lossy(&bytes).into_owned());
                }
            }
            Event::Restore { .. } => {
                self.words = std::mem::take(&mut self.coming);
                self.unchosen.clear();
            }
            Event::Leader(_)
            | Event::Serving
            | Event::Members(_)
            | Event::Removed
            | Event::ChangeRefused { .. }
            | Event::Resigned => {}
            Event::Corrupt(error) => panic!("corrupt: {error}"),
        }
        None
    }

    /// Completes the waiting work with this word.
    pub(crate) fn complete(&mut self, word: &str) -> Command {
        assert!(!self.rests, "nothing is completed before the checkpoint");
        let place = self.waiting.iter().position(|(_, waiting)| waiting == word).expect("it waits");
        let (work, word) = self.waiting.remove(place);
        self.words.push(word.clone());
        self.unchosen.push((work, None, word.clone()));
        let (reply, change) = (Bytes::from(word.clone()), Bytes::from(word));
        Command::Executed { work, result: Executed::Changed { reply, change } }
    }

    /// Reverts words that are not chosen.
    fn take_back(&mut self, which: impl Fn(Option<TransactionId>) -> bool) {
        let unchosen = std::mem::take(&mut self.unchosen);
        let (gone, kept): (Vec<_>, Vec<_>) = unchosen.into_iter().partition(|(_, owner, _)| which(*owner));
        for (_, _, word) in gone {
            let place = self.words.iter().rposition(|other| *other == word).expect("it was added");
            self.words.remove(place);
        }
        self.unchosen = kept;
    }
}

//! A host with a service of its own: a list of words, each with a number that chance adds.

use std::collections::VecDeque;

use bytes::Bytes;
use quorate_protocol::service::{Command, Event, Executed};

#[derive(Default)]
pub(crate) struct Host {
    pub(crate) words: Vec<String>,
    /// The works whose words are not chosen, oldest first.
    unchosen: VecDeque<u64>,
    /// Events to be handled, oldest first.
    pub(crate) queue: VecDeque<Event>,
    /// Whether it does nothing until it is told to.
    pub(crate) slow: bool,
    /// Whether what it did is being handed over.
    pub(crate) busy: bool,
    giving: Option<VecDeque<String>>,
    coming: Vec<String>,
}

impl Host {
    /// Does the next thing, and says what it gives back.
    pub(crate) fn step(&mut self, chance: u64) -> Option<Command> {
        match self.queue.pop_front()? {
            Event::Execute { work, request, read } => {
                let request = String::from_utf8(request.to_vec()).expect("requests of scripts are text");
                let words = request.split_once(':').unwrap_or((request.as_str(), ""));
                let result = match words {
                    ("add", word) => {
                        assert!(!read, "adding is no read");
                        let word = format!("{word}~{}", chance % 100);
                        self.words.push(word.clone());
                        self.unchosen.push_back(work);
                        Executed::Changed { reply: Bytes::from(word.clone()), change: Bytes::from(word) }
                    }
                    ("get", _) => Executed::Unchanged { reply: Bytes::from(self.words.join(" ")) },
                    ("draw", _) => Executed::Unchanged { reply: Bytes::from((chance % 100).to_string()) },
                    _ => Executed::Rejected { reason: Bytes::from(format!("what is {request}")) },
                };
                return Some(Command::Executed { work, result });
            }
            Event::Chosen { work } => {
                while self.unchosen.pop_front_if(|unchosen| *unchosen <= work).is_some() {}
            }
            Event::Revert => {
                let left = self.words.len() - self.unchosen.len();
                self.words.truncate(left);
                self.unchosen.clear();
            }
            Event::Apply { changes, .. } => {
                assert!(self.unchosen.is_empty(), "a backup has nothing that is not chosen");
                let words = changes.iter().map(|change| String::from_utf8_lossy(change).into_owned());
                self.words.extend(words);
            }
            Event::Checkpoint { .. } => {
                assert!(self.unchosen.is_empty(), "a checkpoint holds what is chosen");
                self.giving = Some(self.words.iter().cloned().collect());
            }
            Event::CheckpointPartWanted { checkpoint, .. } => {
                // A word is a part.
                let giving = self.giving.as_mut().expect("a checkpoint was taken");
                let bytes = Bytes::from(giving.pop_front().unwrap_or_default());
                return Some(Command::CheckpointPart { checkpoint, bytes, last: giving.is_empty() });
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
            | Event::ChangeRefused { .. } => {}
            Event::Corrupt(error) => panic!("corrupt: {error}"),
        }
        None
    }
}

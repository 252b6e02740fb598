//! Commands of a process that must reach the protocol even if the queue of commands is full.

use std::{
    collections::BTreeSet,
    mem,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use quorate_protocol::group::{Command, GroupId};

use crate::lock::lock;

/// Work that must reach the protocol even if the queue of commands is full. The protocol takes this work
/// together with its next command.
#[derive(Default)]
pub(super) struct Owed {
    /// Commands that may overtake the commands in the queue.
    commands: Mutex<Vec<Command>>,
    /// Groups whose seats in this process may differ from the seats that the protocol was last informed of.
    groups: Mutex<BTreeSet<GroupId>>,
    any: AtomicBool,
}

impl Owed {
    pub(super) fn push(&self, command: Command) {
        lock(&self.commands).push(command);
        self.any.store(true, Ordering::SeqCst);
    }

    pub(super) fn insert(&self, group: GroupId) {
        lock(&self.groups).insert(group);
        self.any.store(true, Ordering::SeqCst);
    }

    /// Adds the owed commands, in their order, in front of `command`, which the protocol is about to take.
    /// Returns the owed groups.
    pub(super) fn settle(&self, command: &mut Command) -> BTreeSet<GroupId> {
        // The flag is read for every command, so reading it takes no lock.
        if !self.any.load(Ordering::SeqCst) || !self.any.swap(false, Ordering::SeqCst) {
            return BTreeSet::new();
        }
        let mut owed = mem::take(&mut *lock(&self.commands));
        if !owed.is_empty() {
            owed.push(mem::replace(command, Command::Several(Vec::new())));
            *command = Command::Several(owed);
        }
        mem::take(&mut *lock(&self.groups))
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;

    use super::*;

    /// Returns the parts of a command as text.
    fn words(command: &Command) -> Vec<String> {
        match command {
            Command::Several(commands) => commands.iter().flat_map(words).collect(),
            Command::Quit { group } => vec![format!("quit {}", group.0)],
            Command::Send(_) => vec![String::from("send")],
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn owed_commands_reach_the_protocol_although_its_queue_is_full() {
        let (queue, taken) = bounded(1);
        let owed = Owed::default();
        queue.try_send(Command::Send(Vec::new())).expect("it has room");
        for group in [1, 2] {
            owed.push(Command::Quit { group: GroupId(group) });
            assert!(queue.try_send(Command::Several(Vec::new())).is_err(), "the queue is full");
        }
        owed.insert(GroupId(3));
        let mut next = taken.try_recv().expect("it was sent");
        assert_eq!(owed.settle(&mut next), [GroupId(3)].into());
        assert_eq!(words(&next), ["quit 1", "quit 2", "send"]);
        let mut next = Command::Send(Vec::new());
        assert!(owed.settle(&mut next).is_empty(), "each is settled once");
        assert_eq!(words(&next), ["send"]);
    }
}

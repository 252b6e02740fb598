//! A protocol for tests, which executes commands and reports its inputs.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::{BufMut, Bytes, BytesMut};
use quorate_protocol::{
    Anyone, Context, Destination, Input, Policy, ProcessId, Protocol, Session, Sink, Ticket, Time,
    wire::{self, Wire, WireError},
};

use super::{World, channel, id};
use crate::{Command, Dynamic, Ending, Event, NewEndpoint};

/// A message that holds the session in which it was sent, and the number of earlier messages in that session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) session: u64,
    pub(crate) number: u64,
}

impl Wire for Word {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(self.session);
        out.put_u64_le(self.number);
    }

    fn decode(input: &mut Bytes) -> Result<Self, WireError> {
        Ok(Word { session: wire::take_u64(input)?, number: wire::take_u64(input)? })
    }
}

#[derive(Debug)]
pub(crate) enum Do {
    Reach(usize),
    Forget(usize),
    Say(usize),
    Persist,
    Collect(Ticket),
    Adopt(Arc<dyn Policy>),
    Wake(Time),
    Panic,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChatEvent {
    Heard(ProcessId, Word),
    Linked(ProcessId, Session),
    Unlinked(ProcessId),
    Persisted(Ticket),
    Woken,
}

#[derive(Default)]
pub(crate) struct Chat {
    /// For each peer with a session: the session, and the numbers of messages sent and received in it.
    sessions: BTreeMap<ProcessId, (Session, u64, u64)>,
    wake: Option<Time>,
    policy: Option<Arc<dyn Policy>>,
    pub(crate) calls: Arc<AtomicUsize>,
}

impl Chat {
    pub(crate) fn showing(policy: Arc<dyn Policy>) -> Chat {
        Chat { policy: Some(policy), ..Chat::default() }
    }
}

impl Protocol for Chat {
    type Message = Word;
    type Record = Word;
    type Command = Do;
    type Event = ChatEvent;

    fn handle(&mut self, cx: &mut Context<'_>, input: Input<Self>, out: &mut dyn Sink<Self>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match input {
            Input::Receive { from, message } => {
                if from != cx.me {
                    let (session, _, heard) = self.sessions.get_mut(&from).expect("only in a session");
                    assert_eq!(
                        message,
                        Word { session: session.0, number: *heard },
                        "in it, in order, without a gap"
                    );
                    *heard += 1;
                }
                out.emit(ChatEvent::Heard(from, message));
            }
            Input::Command(Do::Reach(peer)) => out.reach(id(peer), "somewhere"),
            Input::Command(Do::Forget(peer)) => out.forget(id(peer)),
            Input::Command(Do::Say(peer)) => {
                let word = match self.sessions.get_mut(&id(peer)) {
                    Some((session, said, _)) => {
                        *said += 1;
                        Word { session: session.0, number: *said - 1 }
                    }
                    None => Word { session: 0, number: 0 },
                };
                out.send(Destination::One(id(peer)), word, None);
            }
            Input::Command(Do::Persist) => {
                out.persist(Word { session: 1, number: 2 });
            }
            Input::Command(Do::Collect(before)) => out.collect(before, &[]),
            Input::Command(Do::Adopt(policy)) => {
                self.policy = Some(policy.clone());
                out.adopt(policy);
            }
            Input::Command(Do::Wake(at)) => self.wake = Some(at),
            Input::Command(Do::Panic) => panic!("as told"),
            Input::Deadline => {
                assert!(self.wake.is_some_and(|at| at <= cx.now), "never before");
                self.wake = None;
                out.emit(ChatEvent::Woken);
            }
            Input::Persisted(ticket) => out.emit(ChatEvent::Persisted(ticket)),
            Input::Linked { peer, session } => {
                assert!(self.sessions.insert(peer, (session, 0, 0)).is_none(), "one session at a time");
                out.emit(ChatEvent::Linked(peer, session));
            }
            Input::Unlinked { peer } => {
                self.sessions.remove(&peer);
                out.emit(ChatEvent::Unlinked(peer));
            }
            Input::Cast { .. } | Input::Progress { .. } | Input::Drained => {}
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.wake
    }

    fn policy(&self) -> Arc<dyn Policy> {
        self.policy.clone().unwrap_or_else(|| Arc::new(Anyone))
    }
}

impl<H: Protocol<Message: Wire>> World<H> {
    /// Adds a chat at an endpoint of a node. Returns the counter of calls to that chat.
    pub(crate) fn chat(&mut self, node: usize, endpoint: u64) -> Arc<AtomicUsize> {
        let chat = Chat::default();
        let calls = chat.calls.clone();
        assert!(self.nodes[node].add(NewEndpoint::dynamic(channel(endpoint), Dynamic(chat))).is_ok());
        calls
    }

    pub(crate) fn chat_with(&mut self, node: usize, endpoint: u64, policy: impl Policy + 'static) {
        let new_endpoint = NewEndpoint::dynamic(channel(endpoint), Dynamic(Chat::showing(Arc::new(policy))));
        assert!(self.nodes[node].add(new_endpoint).is_ok());
    }

    pub(crate) fn command_chat(&mut self, node: usize, endpoint: u64, what: Do) {
        self.command(node, Command::Dynamic(channel(endpoint), Box::new(what)));
    }

    /// Returns the events of a node's chats since the last call. Drops the node's other events.
    pub(crate) fn take_chat_events(&mut self, node: usize) -> Vec<(u64, ChatEvent)> {
        let chat_events = |event| match event {
            Event::Dynamic(channel, chat_events) => {
                Some((channel.endpoint.0, *chat_events.downcast::<ChatEvent>().unwrap()))
            }
            Event::Ended(_, Ending::Panicked(why)) => {
                assert_eq!(why, "as told", "a chat found something broken");
                None
            }
            _ => None,
        };
        self.take_events(node).into_iter().filter_map(chat_events).collect()
    }
}

/// Returns the present session of a chat with a peer, according to the latest event in `chat_events`.
pub(crate) fn session(chat_events: &[(u64, ChatEvent)], endpoint: u64, peer: usize) -> Option<Session> {
    let of_peer = chat_events.iter().rev().filter(|(at, _)| *at == endpoint).find_map(|(_, chat_events)| {
        match chat_events {
            ChatEvent::Linked(with, session) if *with == id(peer) => Some(Some(*session)),
            ChatEvent::Unlinked(with) if *with == id(peer) => Some(None),
            _ => None,
        }
    });
    of_peer.flatten()
}

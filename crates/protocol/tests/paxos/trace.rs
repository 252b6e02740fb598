//! The form of messages and members in traces.

use bytes::Bytes;
use quorate_protocol::{
    Peer,
    paxos::{Ballot, Message, SlotValue},
};

use super::world::name;

pub(crate) fn names(peers: &[Peer]) -> String {
    peers.iter().map(|peer| name(peer.id)).collect::<Vec<_>>().join(" ")
}

pub(crate) fn texts(payloads: &[Bytes]) -> String {
    let text = |payload: &Bytes| match payload.len() {
        0..=20 => String::from_utf8_lossy(payload).into_owned(),
        length => format!("({length} bytes)"),
    };
    payloads.iter().map(text).collect::<Vec<_>>().join(" ")
}

pub(crate) fn round(ballot: Ballot) -> String {
    format!("b{}/{}", ballot.round, name(ballot.router))
}

fn value(value: &SlotValue) -> String {
    match value {
        SlotValue::Payloads(payloads) => format!("[{}]", texts(payloads)),
        SlotValue::Members(members) => format!("[members {}]", names(members)),
    }
}

fn values(values: &[SlotValue]) -> String {
    values.iter().map(value).collect::<Vec<_>>().join(" ")
}

/// Returns the trace of a message, or `None` for kinds of messages that are sent all the time.
pub(crate) fn brief(message: &Message) -> Option<String> {
    let b = |ballot: &Ballot| round(*ballot);
    Some(match message {
        Message::Heartbeat { .. } | Message::Pulse(_) | Message::Following { lacks: false, .. } => {
            return None;
        }
        Message::Following { ballot, through, .. } => {
            format!("Following {} lacks, holds {through:?}", b(ballot))
        }
        Message::Forward { payloads, .. } => format!("Forward {}", texts(payloads)),
        Message::Accept { ballot, slot, chosen, value: v } => {
            format!("Accept {} {slot} {} chosen {chosen}", b(ballot), value(v))
        }
        Message::Confirm { ballot, round } => format!("Confirm {} round {round}", b(ballot)),
        Message::Confirmed { ballot, round } => format!("Confirmed {} round {round}", b(ballot)),
        Message::Accepted { ballot, through } => format!("Accepted {} {through}", b(ballot)),
        Message::Chosen { through, .. } => format!("Chosen {through}"),
        Message::Sync { ballot, start, chosen, values: v } => {
            format!("Sync {} behind {start}: {} chosen {chosen}", b(ballot), values(v))
        }
        Message::CatchUp { start, values, .. } => format!("CatchUp behind {start}: {} values", values.len()),
        Message::Chunk { slot, total, offset, bytes, .. } => {
            format!("Chunk {slot} {offset}+{} of {total}", bytes.len())
        }
        Message::Part { slot, number, last, bytes, .. } => {
            let end = if *last { ", the last" } else { "" };
            format!("Part {slot} number {number}: {} bytes{end}", bytes.len())
        }
        Message::ChunkTaken { slot, offset, .. } => format!("ChunkTaken {slot} {offset}"),
        Message::Promise { ballot, accepted, last, chosen, start, values: v } => format!(
            "Promise {} accepted {} {last} chosen {chosen}, behind {start}: {}",
            b(ballot),
            b(accepted),
            values(v)
        ),
        Message::PreVote(p) => format!("PreVote {} {} chosen {}", b(&p.ballot), p.last, p.chosen),
        Message::PreVoted { ballot, better: None } => format!("PreVoted {}", b(ballot)),
        Message::PreVoted { ballot, better: Some(log) } => {
            let (accepted, members) = (b(&log.accepted), names(&log.members));
            format!("PreVoted {}, has accepted {accepted} {} of {members}", b(ballot), log.last)
        }
        Message::Prepare(p) => {
            format!("Prepare {} accepted {} {} chosen {}", b(&p.ballot), b(&p.accepted), p.last, p.chosen)
        }
        Message::Refused { ballot, promised, refusal } => {
            format!("Refused {}: {refusal:?}, promised {}", b(ballot), b(promised))
        }
        Message::Resign { ballot } => format!("Resign {}", b(ballot)),
        Message::HandOver { ballot, successor } => format!("HandOver {} to {}", b(ballot), name(*successor)),
        Message::Away => String::from("Away"),
        Message::Join { peer } => format!("Join {}", name(peer.id)),
        Message::Refer { leader, members } => {
            format!("Refer {:?} of {}", leader.map(name), names(members))
        }
        Message::Change(change) => format!("{change:?}"),
        Message::ChangeRefused { reason, .. } => format!("ChangeRefused {reason:?}"),
        Message::Dropped { .. } => "Dropped".to_owned(),
        Message::NodeInUse { by } => format!("NodeInUse {}", name(by.id)),
        Message::NotMember { chosen, members } => format!("NotMember as of {chosen}: {}", names(members)),
    })
}

//! The replies of a storage process to a client that contain no part of an answer, for example that the
//! client must try again.

use smallvec::SmallVec;

use crate::{
    ecast::Position,
    id::ProcessId,
    rubberband::{Direct, Message, ReadCost, Reply, ReplyContent},
    seam::{Destination, Protocol, Sink},
};

/// Tells a client to try again at another process.
pub(super) fn retry(
    client: ProcessId,
    token: u64,
    at: Position,
    out: &mut dyn Sink<impl Protocol<Message = Message>>,
) {
    send_content(client, token, at, ReplyContent::Retry, out);
}

/// Sends a client a reply that is no part of an answer. If the client no longer waits for the reply, it
/// cancels the request.
pub(super) fn send_content(
    client: ProcessId,
    token: u64,
    at: Position,
    content: ReplyContent,
    out: &mut dyn Sink<impl Protocol<Message = Message>>,
) {
    let (spent, last) = (ReadCost::default(), content != ReplyContent::Underway);
    let reply = Reply { token, at, ranges: SmallVec::new(), piece: 0, last, spent, content };
    out.send(Destination::One(client), Message::Direct(Direct::Reply(reply)), None);
}

//! The fence between generations of a domain: which processes may have a link (rule S1).
//!
//! **Promise.** Once a process has entered a generation, no message from routers of an earlier generation
//! reaches that process.
//!
//! **How.** A process shows its kind and its generation ([`Policy::pass`]), and both ends judge
//! ([`Fence::may_link`]):
//!
//! - Routers have links only to routers of their own generation.
//! - A process of a later generation has no link to a router of an earlier generation. Members of an earlier
//!   generation may have links to later routers, in order to follow them.
//! - Two generations with the same number have no links at all: neither continues the other.
//!
//! A process enters a generation once and never goes back ([`Sink::adopt`](crate::Sink::adopt)). Its host
//! then breaks the links that the new fence forbids, before it sends or hands over anything else, and opens
//! none of them again. So the promise depends on no message and no clock: earlier messages of an old router
//! are dropped with its link, and later messages have no link.
//!
//! **Why members are not fenced from each other.** Their messages concern positions, and only a process
//! within a history knows which history a position belongs to. A member enters a generation when it hears a
//! router of that generation, so members of two generations are neighbours for a while. They judge each
//! other's messages by positions that both have delivered ([`Reformed`](super::Reformed)).
//!
//! **Left behind.** A router that meets a process of a later generation was left behind ([`Fence::is_out`]).
//! The process that refuses the link shows this to the router, and the router ends.
//!
//! **Versions of routing** (S8). A router also shows the version with which its domain was founded, unless
//! this is the first version or the router does not know it yet. Builds that know only the first version do
//! not understand such a pass, and refuse a link to the router. So no router of such a build learns a log
//! that it would read otherwise.
//!
//! The fence says nothing about identity. The hello of a link proves that a peer is the process it claims to
//! be.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::{Member, Router, Routing};
use crate::{
    id::Generation,
    seam::{Policy, Sink},
    wire::{self, WireError},
};

/// The properties that decide whether two processes of a domain may have a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Whether the process is a router.
    pub router: bool,
    /// The generation of the process.
    pub generation: Generation,
    /// The version of routing of a router's domain, if the router knows it. The version is 1 for a router
    /// that does not know it, and for a member.
    pub routing: u32,
}

impl Fence {
    /// Returns the fence of a router.
    pub fn of_router(generation: Generation) -> Fence {
        Fence { router: true, generation, routing: 1 }
    }

    /// Returns the fence of a member.
    pub fn of_member(generation: Generation) -> Fence {
        Fence { router: false, generation, routing: 1 }
    }

    /// Decodes the fence of a process from its pass, `None` if the pass does not belong to E-Cast.
    pub fn of_pass(pass: &[u8]) -> Option<Fence> {
        Fence::decode(&mut Bytes::copy_from_slice(pass)).ok()
    }

    /// Whether the two processes may have a link. The relation is symmetric.
    pub fn may_link(self, other: Fence) -> bool {
        let outdated =
            |router: Fence, other: Fence| router.router && other.generation.is_later(router.generation);
        !self.generation.is_beside(other.generation) && !outdated(self, other) && !outdated(other, self)
    }

    /// Whether this process, which has met `other`, was left behind: the domain continues without it.
    pub fn is_out(self, other: Fence) -> bool {
        self.router && other.generation.is_later(self.generation)
    }

    fn decode(input: &mut Bytes) -> Result<Fence, WireError> {
        let (router, routing) = match wire::take_u8(input)? {
            MEMBER => (false, 1),
            ROUTER => (true, 1),
            LATER_ROUTER => (true, wire::take_u32(input)?),
            other => return Err(WireError::Tag(other)),
        };
        let fence = Fence { router, generation: wire::take_generation(input)?, routing };
        if input.is_empty() { Ok(fence) } else { Err(WireError::Trailing(input.len())) }
    }
}

impl Policy for Fence {
    fn pass(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(PASS_BYTES);
        match (self.router, self.routing) {
            (false, _) => out.put_u8(MEMBER),
            (true, 1) => out.put_u8(ROUTER),
            (true, later) => {
                out.put_u8(LATER_ROUTER);
                out.put_u32_le(later);
            }
        }
        wire::put_generation(&mut out, self.generation);
        out.freeze()
    }

    /// Refuses a pass without a fence, because it belongs to no process of E-Cast.
    fn admits(&self, theirs: &[u8]) -> bool {
        Fence::of_pass(theirs).is_some_and(|theirs| self.may_link(theirs))
    }

    fn refusal(&self, theirs: &[u8]) -> String {
        let ours = self.generation;
        match Fence::of_pass(theirs).map(|theirs| theirs.generation) {
            None => String::from(
                "the peer showed no generation of the domain, which every process of the domain has to show",
            ),
            Some(theirs) if theirs.is_beside(ours) => format!(
                "generation {theirs} of the domain began twice, at the peer with router incarnation {:?} and \
                 here with {:?}: these are two separate domains now, so stop the processes of one of the two",
                theirs.survivor, ours.survivor
            ),
            Some(theirs) => format!(
                "the peer is of generation {theirs}, which began with router incarnation {:?}, and this \
                 process of generation {ours}, which began with {:?}: routers of an earlier generation no \
                 longer belong to the domain",
                theirs.survivor, ours.survivor
            ),
        }
    }
}

impl<R: Routing> Router<R> {
    /// Counts a message to this router that no router accepts.
    pub fn refuse(&mut self) {
        self.refused += 1;
    }

    /// Returns the generation of the router.
    pub fn generation(&self) -> Generation {
        self.settings.generation
    }

    /// Returns the router's fence.
    pub fn fence(&self) -> Fence {
        Fence { routing: self.routing, ..Fence::of_router(self.generation()) }
    }

    /// Puts the domain's version of routing into the pass that this router shows to its peers, once the
    /// router knows the domain's configuration.
    pub(super) fn show_routing(&mut self, out: &mut dyn Sink<Self>) {
        let version = R::version(self.order.config());
        if self.order.is_founded() && std::mem::replace(&mut self.routing, version) != version {
            self.adopt(out);
        }
    }

    /// Tells the host that the router has entered another generation, or knows the version of routing.
    pub(super) fn adopt(&self, out: &mut dyn Sink<Self>) {
        out.adopt(Arc::new(self.fence()));
    }
}

impl Member {
    /// Returns the member's fence.
    pub fn fence(&self) -> Fence {
        Fence::of_member(self.generation())
    }
}

const MEMBER: u8 = 0;
const ROUTER: u8 = 1;
const LATER_ROUTER: u8 = 3;
const PASS_BYTES: usize = 21;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{id::Incarnation, seam::PASS_BYTES_MAX};

    fn generation(number: u32, survivor: u128) -> Generation {
        Generation { number, survivor: Incarnation(survivor) }
    }

    #[test]
    fn a_pass_decodes_to_its_fence_and_other_bytes_are_no_pass() {
        let later = Fence { routing: 2, ..Fence::of_router(generation(3, 7)) };
        for fence in [Fence::of_router(generation(3, 7)), Fence::of_member(Generation::FIRST), later] {
            let pass = fence.pass();
            let bytes = if fence == later { PASS_BYTES + 4 } else { PASS_BYTES };
            assert!(pass.len() == bytes && bytes <= PASS_BYTES_MAX);
            assert_eq!(Fence::of_pass(&pass), Some(fence));
            for end in 0..pass.len() {
                assert_eq!(Fence::of_pass(&pass[..end]), None, "a prefix of {end} bytes");
            }
            assert_eq!(Fence::of_pass(&[&pass[..], &[0]].concat()), None);
            assert_eq!(Fence::of_pass(&[&[2], &pass[1..]].concat()), None);
            assert!(!fence.admits(b"") && !fence.admits(b"somebody"));
        }
    }

    /// Routers have links only to routers of their own generation. Members also have links to routers of
    /// later generations. The cases are a router and a member of each of three generations: the first
    /// generation, a generation that continues it, and another generation that also continues it.
    #[test]
    fn routers_are_linked_within_a_generation_and_members_to_later_ones() {
        let generations = [generation(0, 0), generation(1, 1), generation(1, 2)];
        let all = generations.into_iter().flat_map(|it| [Fence::of_router(it), Fence::of_member(it)]);
        let all: Vec<Fence> = all.collect();
        let linked =
            |one: usize| all.iter().map(|other| u8::from(all[one].may_link(*other))).collect::<Vec<_>>();
        // Columns: router and member of the first generation, of its first successor, of its second
        // successor.
        assert_eq!(linked(0), [1, 1, 0, 0, 0, 0], "a router of the first generation");
        assert_eq!(linked(1), [1, 1, 1, 1, 1, 1], "a member of the first generation");
        assert_eq!(linked(2), [0, 1, 1, 1, 0, 0], "a router of a later one");
        assert_eq!(linked(3), [0, 1, 1, 1, 0, 0], "a member of a later one");
        for one in &all {
            for other in &all {
                assert_eq!(one.may_link(*other), other.may_link(*one), "{one:?} {other:?}");
                assert_eq!(one.admits(&other.pass()), one.may_link(*other), "{one:?} {other:?}");
                assert!(!one.is_out(*other) || !one.may_link(*other), "who is out has no link");
            }
        }
        assert!(all[0].is_out(all[2]) && all[0].is_out(all[3]), "only routers are out, whoever they meet");
        assert!(!all[1].is_out(all[2]) && !all[2].is_out(all[0]) && !all[2].is_out(all[4]));
    }
}

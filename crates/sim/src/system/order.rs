//! The order as the routers learn it: fixed position by position at the first learning anywhere, and judged by the seven
//! predicates of correct routing against a naive twin of the routing.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, Bytes};
use quorate_protocol::{
    ProcessId,
    ecast::{Class, MessageId, Ordered, Position, Router, Routing},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    check::{CreditCheck, RoutingCheck},
    world::Violation,
};

/// What a routing should do, said in the simplest way and without a line of its code.
pub(crate) trait Twin {
    /// The next message of the order: whom it is for, or why it is for nobody.
    fn next(
        &mut self,
        position: u64,
        sender: ProcessId,
        class: Class,
        body: &Bytes,
    ) -> Result<BTreeSet<ProcessId>, Unroutable>;

    /// Whether `process` is a member now.
    fn is_member(&mut self, process: ProcessId) -> bool;
}

/// Why a message is for nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unroutable {
    /// Its sender was no member: it should not have a position.
    Stranger,
    /// The routing refuses it.
    Refused,
}

/// The order, and what is known of it.
pub(crate) struct Order<T> {
    pub(crate) check: RoutingCheck,
    pub(crate) twin: T,
    /// Whether senders keep to their credits, where the simulator sees what is executed.
    pub(crate) credits: Option<CreditCheck>,
    /// Who, its number there, and what.
    fixed: BTreeMap<u64, (MessageId, u64)>,
    refused: BTreeSet<u64>,
    /// Everyone who ever was a member.
    members: BTreeSet<ProcessId>,
    /// How far each life of a router has been compared.
    compared: BTreeMap<u64, u64>,
}

impl<T: Twin> Order<T> {
    pub(crate) fn new(twin: T) -> Self {
        Order {
            check: RoutingCheck::default(),
            twin,
            credits: None,
            fixed: BTreeMap::new(),
            refused: BTreeSet::new(),
            members: BTreeSet::new(),
            compared: BTreeMap::new(),
        }
    }

    /// The last position.
    pub(crate) fn end(&self) -> u64 {
        self.check.end()
    }

    /// Whether the twin found `position` to be for nobody.
    pub(crate) fn is_refused(&self, position: u64) -> bool {
        self.refused.contains(&position)
    }

    /// Compares what a life of a router has learned with the order, and lengthens the order where it is the first. Tells
    /// what occurred on the way, to be counted.
    pub(crate) fn compare<R: Routing>(
        &mut self,
        life: u64,
        router: &Router<R>,
    ) -> Result<Vec<&'static str>, Violation> {
        let (position, base) = (router.position().0, router.base().0);
        if base > self.end() {
            let what = format!("life {life} calls {base} stable, and nobody has learned it");
            return Err(Violation::new("agreement", what));
        }
        let compared = self.compared.get(&life).copied().unwrap_or(0);
        let mut occurred = Vec::new();
        if position > compared {
            for (at, ordered) in router.live_after(Position(compared)) {
                match self.fixed.get(&at.0) {
                    // What is stable has no body any more.
                    Some((id, known))
                        if *id == ordered.id && (ordered.is_stable() || *known == xxh3_64(&ordered.body)) => {
                    }
                    Some((id, _)) => {
                        let what = format!("life {life} has {:?} at {at}, not {id:?}", ordered.id);
                        return Err(Violation::new("agreement", what));
                    }
                    None => self.fix(at.0, ordered, &mut occurred)?,
                }
            }
            self.compared.insert(life, position);
        }
        Ok(occurred)
    }

    fn fix(&mut self, at: u64, ordered: &Ordered, occurred: &mut Vec<&'static str>) -> Result<(), Violation> {
        let id = ordered.id;
        let content = xxh3_64(&ordered.body);
        self.fixed.insert(at, (id, content));
        let destinations = match self.twin.next(at, id.sender, ordered.class, &ordered.body) {
            Ok(destinations) => destinations,
            Err(Unroutable::Stranger) => {
                let what = format!("{id:?} is at {at}, and its sender is no member");
                return Err(Violation::new("valid", what));
            }
            Err(Unroutable::Refused) => {
                occurred.push("refused by the routing");
                self.refused.insert(at);
                BTreeSet::new()
            }
        };
        if ordered.class == Class::Data
            && let Some(credits) = &mut self.credits
        {
            let departed = |who: &ProcessId| self.check.has_departed(*who);
            let living = destinations.iter().copied().filter(|who| !departed(who)).collect();
            credits.ordered(at, id.sender, living)?;
        }
        self.check.ordered(at, (id.sender, id.number - 1), content, destinations)?;
        if ordered.class == Class::Control {
            if self.twin.is_member(id.sender) && self.members.insert(id.sender) {
                occurred.push("member joined");
                self.check.begins(id.sender, at - 1);
            }
            for &member in &self.members {
                if !self.check.has_departed(member) && !self.twin.is_member(member) {
                    occurred.push("member departed");
                    self.check.departed(member);
                    if let Some(credits) = &mut self.credits {
                        credits.executed(member, u64::MAX);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The messages in a block of submissions: their numbers and a hash of each.
pub(crate) fn submissions(block: &Bytes) -> Vec<(u64, u64)> {
    let mut rest = block.slice(NUMBER_AT..);
    let first = rest.get_u64_le();
    let count = u64::from(rest.get_u32_le());
    (first..first + count)
        .map(|number| {
            let _class = rest.get_u8();
            let length = rest.get_u32_le() as usize;
            (number, xxh3_64(&rest.split_to(length)))
        })
        .collect()
}

/// Where a block of submissions has its first number: behind tag, sender and acknowledged number.
pub(crate) const NUMBER_AT: usize = 1 + 24 + 8;

//! The order as the routers learn it. The first learning anywhere fixes each position. The order is judged by
//! the seven predicates of correct routing against a naive twin of the routing.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, Bytes};
use quorate_protocol::{
    Generation, ProcessId,
    ecast::{Class, MessageId, Ordered, Position, Reformed, Router, Routing},
};
use xxhash_rust::xxh3::xxh3_64;

use quorate_world::Violation;

use super::{CreditCheck, RoutingCheck};

/// The specification of a routing, in the simplest way and without a line of its code.
pub(crate) trait Twin: Clone {
    /// Takes the next message of the order. Returns its destinations, or the reason why it has none.
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

/// The message at a position: its sender and number, its class, and its content.
#[derive(Clone)]
struct Fixed {
    id: MessageId,
    class: Class,
    content: u64,
    body: Bytes,
}

/// The reason why a message has no destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unroutable {
    /// The message's sender was no member, so it should not have a position.
    NotMember,
    /// The routing refuses the message.
    Refused,
    /// The message belongs to a part of the domain that the twin does not know. It only occupies a position
    /// in the order.
    OtherPart,
}

/// The order, and the facts known about it.
pub(crate) struct Order<T> {
    pub(crate) check: RoutingCheck,
    pub(crate) twin: T,
    /// The twin of the routing, in its state before the first message.
    origin: T,
    /// The check of the senders' credits, in systems in which the simulator sees executions.
    pub(crate) credits: Option<CreditCheck>,
    /// The last position.
    end: u64,
    /// The message at each position that is no hole.
    fixed: BTreeMap<u64, Fixed>,
    refused: BTreeSet<u64>,
    /// All processes that ever were members.
    members: BTreeSet<ProcessId>,
    /// The last compared position of each life of a router.
    compared: BTreeMap<u64, u64>,
    /// Former members.
    gone: BTreeSet<ProcessId>,
}

impl<T: Twin> Order<T> {
    pub(crate) fn new(twin: T) -> Self {
        Order {
            check: RoutingCheck::default(),
            origin: twin.clone(),
            twin,
            credits: None,
            end: 0,
            fixed: BTreeMap::new(),
            refused: BTreeSet::new(),
            members: BTreeSet::new(),
            compared: BTreeMap::new(),
            gone: BTreeSet::new(),
        }
    }

    /// Returns the last position.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Whether the twin found that the message at `position` has no destinations.
    pub(crate) fn is_refused(&self, position: u64) -> bool {
        self.refused.contains(&position)
    }

    /// Compares the messages that a life of a router has learned with the order. Extends the order by
    /// messages that no life has learned before. Returns the names of the events that these messages show,
    /// for the counters.
    pub(crate) fn compare<R: Routing>(
        &mut self,
        life: u64,
        router: &Router<R>,
    ) -> Result<Vec<&'static str>, Violation> {
        let compared = self.compared.get(&life).copied().unwrap_or(0);
        let learned = router.live_after(Position(compared));
        let occurred = self.learned(life, router.position(), learned)?;
        self.is_stable_through(life, router.base())?;
        Ok(occurred)
    }

    /// Checks the claim of a router's life that everything up to `base` is stable.
    pub(crate) fn is_stable_through(&self, life: u64, base: Position) -> Result<(), Violation> {
        if base.0 > self.end() {
            let what = format!(
                "router life {life} calls all messages up to position {base} stable, but no router has \
                 learned this position"
            );
            return Err(Violation::new("agreement", what));
        }
        Ok(())
    }

    /// Records that a life of a router has learned everything up to `position`. `learned` has the messages.
    pub(crate) fn learned<'a>(
        &mut self,
        life: u64,
        position: Position,
        learned: impl Iterator<Item = (Position, &'a Ordered)>,
    ) -> Result<Vec<&'static str>, Violation> {
        let compared = self.compared.get(&life).copied().unwrap_or(0);
        let mut occurred = Vec::new();
        if position.0 > compared {
            for (at, ordered) in learned.filter(|(at, _)| at.0 > compared) {
                match self.fixed.get(&at.0) {
                    // A router drops the body of a stable message, so only the bodies of other messages can
                    // be compared.
                    Some(Fixed { id, content, .. })
                        if *id == ordered.id
                            && (ordered.is_stable() || *content == xxh3_64(&ordered.body)) => {}
                    Some(Fixed { id, .. }) => {
                        let what = format!(
                            "router life {life} has message {:?} at position {at}, where another router \
                             has {id:?}",
                            ordered.id
                        );
                        return Err(Violation::new("agreement", what));
                    }
                    None if at.0 > self.end => {
                        let Ordered { id, class, ref body, .. } = *ordered;
                        self.fix(at.0, id, class, body, &mut occurred)?;
                    }
                    None if ordered.is_hole() => {}
                    None => {
                        let what = format!(
                            "router life {life} has message {:?} at position {at}, which is a hole at \
                             other routers",
                            ordered.id
                        );
                        return Err(Violation::new("agreement", what));
                    }
                }
            }
            self.compared.insert(life, position.0);
        }
        Ok(occurred)
    }

    fn fix(
        &mut self,
        at: u64,
        id: MessageId,
        class: Class,
        body: &Bytes,
        occurred: &mut Vec<&'static str>,
    ) -> Result<(), Violation> {
        let content = xxh3_64(body);
        let fixed = Fixed { id, class, content, body: body.clone() };
        let Some(destinations) = self.follow(at, fixed, occurred)? else { return Ok(()) };
        if class == Class::Data
            && let Some(credits) = &mut self.credits
        {
            let departed = |who: &ProcessId| self.check.has_departed(*who);
            let living = destinations.iter().copied().filter(|who| !departed(who)).collect();
            credits.ordered(at, id.sender, living)?;
        }
        self.check.ordered(at, (id.sender, id.number - 1), content, destinations)?;
        if class == Class::Control {
            self.update_members(at, id.sender, occurred);
        }
        Ok(())
    }

    /// Gives the next message to the twin. Returns the message's destinations; `None` if the message belongs
    /// to another part.
    fn follow(
        &mut self,
        at: u64,
        fixed: Fixed,
        occurred: &mut Vec<&'static str>,
    ) -> Result<Option<BTreeSet<ProcessId>>, Violation> {
        let Fixed { id, class, .. } = fixed;
        let next = self.twin.next(at, id.sender, class, &fixed.body);
        self.end = at;
        self.fixed.insert(at, fixed);
        match next {
            Ok(destinations) => Ok(Some(destinations)),
            Err(Unroutable::OtherPart) => {
                occurred.push("ordered for another part");
                Ok(None)
            }
            Err(Unroutable::NotMember) => {
                let what =
                    format!("message {id:?} was ordered at position {at}, although its sender is no member");
                Err(Violation::new("valid", what))
            }
            Err(Unroutable::Refused) => {
                occurred.push("refused by the routing");
                self.refused.insert(at);
                Ok(Some(BTreeSet::new()))
            }
        }
    }

    /// Notes the members that a control message of `sender` added and removed.
    fn update_members(&mut self, at: u64, sender: ProcessId, occurred: &mut Vec<&'static str>) {
        if self.twin.is_member(sender) && self.members.insert(sender) {
            occurred.push("member joined");
            self.check.begins(sender, at - 1);
        }
        for &member in &self.members {
            if self.twin.is_member(member) {
                continue;
            }
            if self.gone.insert(member) {
                occurred.push("member departed");
                self.check.departed(member);
                if let Some(credits) = &mut self.credits {
                    credits.executed(member, u64::MAX);
                }
            }
        }
    }

    /// Whether `process` has departed from this order for good.
    pub(crate) fn is_out(&self, process: ProcessId) -> bool {
        self.check.has_departed(process)
    }

    /// Returns a copy of the order up to `position`. From the later messages, up to `through`, the caller
    /// then adds the messages that members had delivered.
    fn forked(&self, position: u64, through: u64) -> Result<Self, Violation> {
        let mut fork = Order::new(self.origin.clone());
        fork.check = self.check.forked(position, through);
        for (&at, fixed) in self.fixed.range(..=position) {
            let (class, sender) = (fixed.class, fixed.id.sender);
            let routed = fork.follow(at, fixed.clone(), &mut Vec::new())?.is_some();
            if routed && class == Class::Control {
                fork.update_members(at, sender, &mut Vec::new());
            }
        }
        fork.end = position;
        Ok(fork)
    }
}

/// The orders of all generations of a domain. Each order continues an earlier order from the position of its
/// survivor, with the later messages that members had delivered.
///
/// The earlier order does not end at this position: its routers may live, and members listen to them until
/// they learn of the later generation. So each order is judged by itself, for its own members. A message that
/// was delivered by processes which are still members, and were not cut off, has its position in both orders.
pub(crate) struct Generations<T> {
    orders: BTreeMap<Generation, Order<T>>,
    /// The generation that began last.
    current: Generation,
}

impl<T: Twin> Generations<T> {
    pub(crate) fn new(first: Order<T>) -> Self {
        Generations { orders: BTreeMap::from([(Generation::FIRST, first)]), current: Generation::FIRST }
    }

    /// Returns the generation that began last.
    pub(crate) fn current(&self) -> Generation {
        self.current
    }

    /// Returns the order of the generation that began last.
    pub(crate) fn last(&mut self) -> &mut Order<T> {
        self.orders.get_mut(&self.current).expect("it began")
    }

    /// Returns a shared reference to the order of the generation that began last.
    pub(crate) fn newest(&self) -> &Order<T> {
        &self.orders[&self.current]
    }

    /// Returns the order of a generation; `None` before its beginning.
    pub(crate) fn of(&mut self, generation: Generation) -> Option<&mut Order<T>> {
        self.orders.get_mut(&generation)
    }

    /// Returns the generation whose order decides who belongs to `generation`: `generation` itself once it
    /// has begun, and the current generation before that.
    pub(crate) fn judge_of(&self, generation: Generation) -> Generation {
        if self.orders.contains_key(&generation) { generation } else { self.current }
    }

    /// Whether `process` must stop after it went over to `generation`. A former member must stop. So must a
    /// process that was a member in an earlier generation only, and has delivered messages that `generation`
    /// does not know.
    pub(crate) fn is_out(&mut self, generation: Generation, process: ProcessId) -> bool {
        let elsewhere = self.orders.values().any(|order| order.check.has_delivered(process));
        let Some(order) = self.orders.get_mut(&generation) else { return false };
        order.is_out(process) || elsewhere && !order.twin.is_member(process)
    }

    /// Records the next submission of a process. Its present generation may order the submission, and so may
    /// any generation that the process enters later.
    pub(crate) fn submitted(&mut self, who: ProcessId, content: u64) {
        for order in self.orders.values_mut() {
            order.check.submitted(who, content);
        }
    }

    /// Records that a process received the outcome of a message.
    pub(crate) fn outcome_heard(&mut self, who: ProcessId, number: u64) {
        for order in self.orders.values_mut() {
            order.check.outcome_heard((who, number));
        }
    }

    /// Begins a generation. It continues the order of the generation `before` from the position of a life of
    /// a router there; `learned` is what this life has learned since. Facts keep their positions: each
    /// message of the new order behind this position was at the same position in the former order. Every
    /// message that was delivered by processes which are still members and are not cut off is in the new
    /// order, too.
    pub(crate) fn begin(
        &mut self,
        before: Generation,
        life: u64,
        reformed: &Reformed,
        learned: &[(Position, Ordered)],
    ) -> Result<(), Violation> {
        let Reformed { generation, behind: Position(behind), through: Position(through), fenced, .. } =
            reformed;
        let (behind, through) = (*behind, *through);
        let before = reformed.from_members.unwrap_or(before);
        let old = &self.orders[&before];
        let known = old.compared.get(&life).copied().unwrap_or(0);
        if known != behind && reformed.from_members.is_none() {
            let what = format!(
                "router life {life} had learned everything up to position {known}, but begins \
                 {generation:?} after position {behind}"
            );
            return Err(Violation::new("silence before the cut", what));
        }
        let mut new = old.forked(behind, through)?;
        if reformed.from_members.is_some() {
            new.check.forget(behind);
        }
        new.compared.insert(life, through);
        let recovered = learned.iter().filter(|(at, _)| (behind + 1..=through).contains(&at.0));
        for (at, ordered) in recovered.filter(|(_, ordered)| !ordered.is_hole()) {
            let Ordered { id, class, ref body, .. } = *ordered;
            if old.fixed.get(&at.0).is_none_or(|old| old.id != id || old.content != xxh3_64(body)) {
                let what = format!(
                    "the new generation has message {id:?} at position {at}, where the old generation did \
                     not have this message"
                );
                return Err(Violation::new("facts keep their positions", what));
            }
            new.fix(at.0, id, class, body, &mut Vec::new())?;
            new.check.inherit(at.0, &old.check);
        }
        new.end = through;
        for who in old.check.processes().collect::<Vec<_>>() {
            if !new.twin.is_member(who) {
                if !new.gone.contains(&who) {
                    new.check.excluded(who, &old.check);
                }
            } else if fenced.contains(&who) {
                new.check.departed(who);
            } else if let Some(lost) =
                old.check.delivered_behind(who, behind).find(|at| !new.fixed.contains_key(at))
            {
                let what = format!(
                    "process {who} is still a member and had delivered position {lost}, but the new \
                     generation has no message there"
                );
                return Err(Violation::new("facts keep their positions", what));
            }
        }
        self.orders.insert(*generation, new);
        self.current = *generation;
        Ok(())
    }
}

/// Returns the messages in a block of submissions: their numbers, and a hash of each.
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

/// The offset of the first number in a block of submissions, in bytes: behind tag, sender and acknowledged
/// number.
pub(crate) const NUMBER_AT: usize = 1 + 24 + 8;

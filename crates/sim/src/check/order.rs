//! The order as the routers learn it: fixed position by position at the first learning anywhere, and judged by the seven
//! predicates of correct routing against a naive twin of the routing.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, Bytes};
use quorate_protocol::{
    Generation, ProcessId,
    ecast::{Class, MessageId, Ordered, Position, Reformed, Router, Routing},
};
use xxhash_rust::xxh3::xxh3_64;

use quorate_world::Violation;

use super::{CreditCheck, RoutingCheck};

/// What a routing should do, said in the simplest way and without a line of its code.
pub(crate) trait Twin: Clone {
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

/// What has a position: who said it, its number there, and what.
#[derive(Clone)]
struct Fixed {
    id: MessageId,
    class: Class,
    content: u64,
    body: Bytes,
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
    /// The twin as it was before the first message.
    origin: T,
    /// Whether senders keep to their credits, where the simulator sees what is executed.
    pub(crate) credits: Option<CreditCheck>,
    /// The last position.
    end: u64,
    /// What is at each position that is no hole.
    fixed: BTreeMap<u64, Fixed>,
    refused: BTreeSet<u64>,
    /// Everyone who ever was a member.
    members: BTreeSet<ProcessId>,
    /// How far each life of a router has been compared.
    compared: BTreeMap<u64, u64>,
    /// Those of the members who are none any more.
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

    /// The last position.
    pub(crate) fn end(&self) -> u64 {
        self.end
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
        let compared = self.compared.get(&life).copied().unwrap_or(0);
        let learned = router.live_after(Position(compared));
        let occurred = self.learned(life, router.position(), learned)?;
        self.is_stable_through(life, router.base())?;
        Ok(occurred)
    }

    /// A life of a router calls everything stable up to `base`.
    pub(crate) fn is_stable_through(&self, life: u64, base: Position) -> Result<(), Violation> {
        if base.0 > self.end() {
            let what = format!("life {life} calls {base} stable, and nobody has learned it");
            return Err(Violation::new("agreement", what));
        }
        Ok(())
    }

    /// A life of a router has learned everything up to `position`: this, where it was not told before.
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
                    // What is stable has no body any more.
                    Some(Fixed { id, content, .. })
                        if *id == ordered.id
                            && (ordered.is_stable() || *content == xxh3_64(&ordered.body)) => {}
                    Some(Fixed { id, .. }) => {
                        let what = format!("life {life} has {:?} at {at}, not {id:?}", ordered.id);
                        return Err(Violation::new("agreement", what));
                    }
                    None if at.0 > self.end => {
                        let Ordered { id, class, ref body, .. } = *ordered;
                        self.fix(at.0, id, class, body, &mut occurred)?;
                    }
                    None if ordered.is_hole() => {}
                    None => {
                        let what = format!("life {life} has {:?} at {at}, where nothing is", ordered.id);
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
        let destinations = self.follow(at, Fixed { id, class, content, body: body.clone() }, occurred)?;
        if class == Class::Data
            && let Some(credits) = &mut self.credits
        {
            let departed = |who: &ProcessId| self.check.has_departed(*who);
            let living = destinations.iter().copied().filter(|who| !departed(who)).collect();
            credits.ordered(at, id.sender, living)?;
        }
        self.check.ordered(at, (id.sender, id.number - 1), content, destinations)?;
        if class == Class::Control {
            self.come_and_go(at, id.sender, occurred);
        }
        Ok(())
    }

    /// The twin takes the next message; tells whom it is for.
    fn follow(
        &mut self,
        at: u64,
        fixed: Fixed,
        occurred: &mut Vec<&'static str>,
    ) -> Result<BTreeSet<ProcessId>, Violation> {
        let Fixed { id, class, .. } = fixed;
        let next = self.twin.next(at, id.sender, class, &fixed.body);
        self.end = at;
        self.fixed.insert(at, fixed);
        match next {
            Ok(destinations) => Ok(destinations),
            Err(Unroutable::Stranger) => {
                let what = format!("{id:?} is at {at}, and its sender is no member");
                Err(Violation::new("valid", what))
            }
            Err(Unroutable::Refused) => {
                occurred.push("refused by the routing");
                self.refused.insert(at);
                Ok(BTreeSet::new())
            }
        }
    }

    /// A control message of `sender` may have made it a member, and others none.
    fn come_and_go(&mut self, at: u64, sender: ProcessId, occurred: &mut Vec<&'static str>) {
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

    /// Whether `process` is no member of this order, and will not be.
    pub(crate) fn is_out(&self, process: ProcessId) -> bool {
        self.check.has_departed(process)
    }

    /// The same up to `position`; up to `through` some of what came behind will be known again.
    fn forked(&self, position: u64, through: u64) -> Result<Self, Violation> {
        let mut fork = Order::new(self.origin.clone());
        fork.check = self.check.forked(position, through);
        for (&at, fixed) in self.fixed.range(..=position) {
            let (class, sender) = (fixed.class, fixed.id.sender);
            fork.follow(at, fixed.clone(), &mut Vec::new())?;
            if class == Class::Control {
                fork.come_and_go(at, sender, &mut Vec::new());
            }
        }
        fork.end = position;
        Ok(fork)
    }
}

/// The orders of all generations of a domain: each goes on from one before it, from where its survivor stood, with what
/// members had delivered behind that.
///
/// The earlier one does not end by that: its routers may live, and members listen to them until they hear of the later one.
/// So each is judged by itself, by who belongs to it. What members have delivered that are members still, and were not cut
/// off, has its position in both.
pub(crate) struct Generations<T> {
    orders: BTreeMap<Generation, Order<T>>,
    /// The one that began last.
    current: Generation,
}

impl<T: Twin> Generations<T> {
    pub(crate) fn new(first: Order<T>) -> Self {
        Generations { orders: BTreeMap::from([(Generation::FIRST, first)]), current: Generation::FIRST }
    }

    /// Which began last.
    pub(crate) fn current(&self) -> Generation {
        self.current
    }

    /// The order of the generation that began last.
    pub(crate) fn last(&mut self) -> &mut Order<T> {
        self.orders.get_mut(&self.current).expect("it began")
    }

    /// The same, to look at.
    pub(crate) fn newest(&self) -> &Order<T> {
        &self.orders[&self.current]
    }

    /// The order of a generation; `None` before its beginning.
    pub(crate) fn of(&mut self, generation: Generation) -> Option<&mut Order<T>> {
        self.orders.get_mut(&generation)
    }

    /// By which it is judged who belongs to `generation`: until it has begun, the one before.
    pub(crate) fn judge_of(&self, generation: Generation) -> Generation {
        if self.orders.contains_key(&generation) { generation } else { self.current }
    }

    /// Whether `process` must stop, having followed into `generation`: it was a member and is none, or was one in an
    /// earlier generation only, and has delivered what this one does not know of.
    pub(crate) fn is_out(&mut self, generation: Generation, process: ProcessId) -> bool {
        let elsewhere = self.orders.values().any(|order| order.check.has_delivered(process));
        let Some(order) = self.orders.get_mut(&generation) else { return false };
        order.is_out(process) || elsewhere && !order.twin.is_member(process)
    }

    /// A process submitted its next message: whichever generation it is in, or comes to be in, may order it.
    pub(crate) fn submitted(&mut self, who: ProcessId, content: u64) {
        for order in self.orders.values_mut() {
            order.check.submitted(who, content);
        }
    }

    /// A process was told what became of a message.
    pub(crate) fn told(&mut self, who: ProcessId, number: u64) {
        for order in self.orders.values_mut() {
            order.check.told((who, number));
        }
    }

    /// A generation began: the life of a router that belonged to the generation `before` goes on from there, and has learned
    /// this since.
    /// Facts keep their positions: what it puts behind its own end was there, and all that was delivered by those who are
    /// members still, and are not cut off, is there again.
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
            let what =
                format!("life {life} knew all up to {known}, and begins {generation:?} behind {behind}");
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
                let what = format!("{id:?} is said to have been at {at}, and was not");
                return Err(Violation::new("facts keep their positions", what));
            }
            new.fix(at.0, id, class, body, &mut Vec::new())?;
            new.check.inherit(at.0, &old.check);
        }
        new.end = through;
        for who in old.check.processes().collect::<Vec<_>>() {
            if !new.twin.is_member(who) {
                if !new.gone.contains(&who) {
                    new.check.estranged(who, &old.check);
                }
            } else if fenced.contains(&who) {
                new.check.departed(who);
            } else if let Some(lost) =
                old.check.delivered_behind(who, behind).find(|at| !new.fixed.contains_key(at))
            {
                let what = format!("{who} had delivered {lost}, is a member still, and nothing is there");
                return Err(Violation::new("facts keep their positions", what));
            }
        }
        self.orders.insert(*generation, new);
        self.current = *generation;
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

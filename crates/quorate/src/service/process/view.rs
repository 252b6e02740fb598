//! The protocol thread's view of the endpoints: what they tell, for whom.
//!
//! Events of a turn are gathered by endpoint, and passed on when it ends: one wake-up for all of them.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use quorate_node::{self as node, Channel, EndpointId, Node};
use quorate_protocol::{
    DomainId, ProcessId, Time,
    service::{self, ClientCommand, ClientEvent, Fate},
};
use quorate_runtime::{
    Dropped, Untaken,
    discover::{Answer, Presence},
    disk::DiskError,
};
use rustc_hash::FxHashMap;
use tracing::{info, warn};

use super::{
    super::{
        executor::{Order, Performer, weight},
        hosted::{Command, Event, Hosted, Set},
    },
    Behind, Calling, Hosting, Results, Seat, Shared, Side, Together, lock, spawn,
};

/// The protocol thread's view of the endpoints.
pub(super) struct View {
    shared: Arc<Shared>,
    places: FxHashMap<EndpointId, Place>,
    /// Those that have told something in this turn.
    told: Vec<EndpointId>,
    dropped: Dropped,
}

/// An endpoint, and what it told in this turn.
struct Place {
    seat: Arc<Seat>,
    orders: Vec<service::Event>,
    bytes: usize,
    fates: Vec<ClientEvent>,
}

impl View {
    pub(super) fn new(shared: Arc<Shared>, dropped: Dropped) -> View {
        View { shared, places: FxHashMap::default(), told: Vec::new(), dropped }
    }

    fn place(&mut self, channel: Channel) -> Option<&mut Place> {
        if !self.places.contains_key(&channel.endpoint) {
            let seat = lock(&self.shared.seats).get(&channel.endpoint)?.clone();
            let place = Place { seat, orders: Vec::new(), bytes: 0, fates: Vec::new() };
            self.places.insert(channel.endpoint, place);
        }
        self.places.get_mut(&channel.endpoint)
    }

    fn told(&mut self, channel: Channel, event: Event) {
        let Some(place) = self.place(channel) else { return };
        let is_first = place.orders.is_empty() && place.fates.is_empty();
        match event {
            Event::Replica(event) => {
                // The last words of one that has ended may come when its successor is there.
                let Side::Replica(hosting) = &place.seat.side else { return };
                match note(hosting, &event) {
                    // The endpoint has carried it out.
                    Note::Order if lock(&hosting.inline).is_some() => return,
                    Note::Order => {
                        place.bytes += weight(&event);
                        place.orders.push(event);
                    }
                    Note::News => return,
                    Note::Changed => {
                        let seat = place.seat.clone();
                        // Under the lock of those who look, or they could miss it.
                        drop(lock(&seat.heard));
                        return seat.news.notify_all();
                    }
                    Note::End(why) => {
                        let seat = place.seat.clone();
                        self.shared.end(&seat, why, Behind::Life);
                        return self.remove(channel);
                    }
                }
            }
            Event::Client(event) => place.fates.push(event),
            Event::Broken(why) => return place.seat.fail(why),
            Event::Long(performer) => return self.give_thread(channel, performer),
        }
        if is_first {
            self.told.push(channel.endpoint);
        }
    }

    /// A service takes too long to be executed by its endpoint.
    fn give_thread(&mut self, channel: Channel, performer: Box<dyn Performer>) {
        let shared = self.shared.clone();
        let Some(place) = self.place(channel) else { return };
        let Side::Replica(hosting) = &place.seat.side else { unreachable!("a replica's event") };
        let Some(orders) = lock(&hosting.inline).take() else { unreachable!("it was executed there") };
        warn!(service = place.seat.name, "its requests are not short: it is given a thread of its own");
        let results = Results { shared, seat: Arc::downgrade(&place.seat) };
        if let Err(error) = spawn(performer, orders, results) {
            let seat = place.seat.clone();
            self.shared.end(&seat, format!("no thread for its executor: {error}"), Behind::Life);
            self.remove(channel);
        }
    }

    fn remove(&self, channel: Channel) {
        if let Err(Untaken::Full(_)) = self.shared.handle().try_command(node::Command::Remove(channel)) {
            warn!("a replica that ended cannot be taken away: too many commands wait");
        }
    }

    /// Somebody shows what this endpoint does not admit.
    fn stranger(&mut self, channel: Channel, peer: ProcessId, theirs: &[u8]) {
        let Some(seat) = self.place(channel).map(|place| place.seat.clone()) else { return };
        let mut heard = lock(&seat.heard);
        let Some(set) = Set::of_pass(theirs) else {
            if theirs.is_empty() && !heard.absent.contains(&peer) {
                if heard.absent.len() >= HEARD_MAX {
                    heard.absent.clear();
                }
                heard.absent.push(peer);
                seat.news.notify_all();
            }
            return;
        };
        match (heard.set, &seat.side) {
            (Some(own), _) => {
                let strange = own.group != set.group && !heard.strange.contains(&set.group);
                if strange && heard.strange.len() < HEARD_MAX {
                    heard.strange.push(set.group);
                    warn!(service = seat.name, %peer, "another set of this name: it was founded twice");
                }
            }
            (None, Side::Replica(hosting)) if hosting.founds => heard.set = Some(set),
            (None, Side::Replica(hosting)) if let Some(why) = hosting.terms.differ(set.terms) => {
                drop(heard);
                self.shared.end(&seat, String::from(why), Behind::Nothing);
                return self.remove(channel);
            }
            (None, Side::Signpost) => {}
            (None, _) => {
                // It is shown again if this is not taken now.
                let begin = seat.home(Command::Begin { set, founded: false });
                if self.shared.handle().try_command(begin).is_ok() {
                    heard.set = Some(set);
                    info!(service = seat.name, %peer, "found");
                }
            }
        }
        seat.news.notify_all();
    }

    fn pass_on(&mut self, endpoint: EndpointId) {
        let Some(place) = self.places.get_mut(&endpoint) else { return };
        match &place.seat.side {
            Side::Replica(hosting) => {
                let bytes = mem::take(&mut place.bytes);
                let backlog = hosting.tally.backlog.fetch_add(bytes, Ordering::Relaxed) + bytes;
                // Refused only when its executor has ended, and told why.
                let _ = hosting.orders.send(Order::Turn(mem::take(&mut place.orders)));
                if backlog > BACKLOG_BYTES_MAX {
                    let why = format!(
                        "the service is {backlog} bytes of orders behind, more than {BACKLOG_BYTES_MAX}: it is too slow"
                    );
                    let seat = place.seat.clone();
                    self.shared.end(&seat, why, Behind::Life);
                    self.remove(seat.channel);
                }
            }
            Side::Client(calling) => {
                let fates = mem::take(&mut place.fates);
                let ended = {
                    let mut calls = lock(&calling.calls);
                    let end = |fate| Calling::end(&mut calls, fate);
                    fates.into_iter().filter_map(end).collect::<Vec<_>>()
                };
                // Not under the lock: wakers are the executor's code.
                for Together { fates, sender, permits, .. } in ended {
                    // Nobody may wait any more.
                    let _ = sender.send(fates.into_iter().flatten().collect());
                    drop(permits);
                }
            }
            Side::Signpost => {}
        }
    }

    fn ended(&mut self, channel: Channel, ending: node::Ending) {
        self.told.retain(|told| *told != channel.endpoint);
        let place = self.places.remove(&channel.endpoint);
        let seat = place
            .map(|place| place.seat)
            .or_else(|| lock(&self.shared.seats).get(&channel.endpoint).cloned());
        let Some(seat) = seat else { return };
        if let node::Ending::Panicked(words) = ending {
            self.shared.end(&seat, format!("an invariant was found broken: {words}"), Behind::Life);
            // Its records, too, are let go.
            self.remove(channel);
        }
        if let Side::Client(calling) = &seat.side {
            lock(&calling.calls).clear();
        }
    }
}

/// What an event of a replica is to its host.
enum Note {
    /// For the executor.
    Order,
    News,
    /// Something that those who change the replicas wait for.
    Changed,
    End(String),
}

fn note(hosting: &Hosting, event: &service::Event) -> Note {
    if hosting.over.load(Ordering::Relaxed) {
        // The standing is its successor's.
        return Note::News;
    }
    let standing = || lock(&hosting.standing);
    match event {
        service::Event::Leader(leader) => standing().leader = *leader,
        service::Event::Serving => standing().serving = true,
        service::Event::Members(members) => {
            standing().replicas = members.iter().map(|peer| (peer.id, peer.address.clone())).collect();
            return Note::Changed;
        }
        service::Event::Removed => {
            return Note::End(String::from(
                "the others went on without this process, which they took for failed",
            ));
        }
        service::Event::Resigned => return Note::End(String::from("its service cannot go on")),
        service::Event::Corrupt(why) => {
            return Note::End(format!("what another replica sent does not decode: {why}"));
        }
        service::Event::ChangeRefused { change, reason } => {
            warn!(?change, ?reason, "a change of the replicas was refused");
            let mut refused = lock(&hosting.refused);
            refused.push_back((change.clone(), *reason));
            if refused.len() > REFUSED_MAX {
                refused.pop_front();
            }
            return Note::Changed;
        }
        service::Event::Revert => {
            standing().serving = false;
            return Note::Order;
        }
        _ => return Note::Order,
    }
    Note::News
}

impl quorate_runtime::Host<Node<Hosted>> for View {
    fn event(&mut self, event: node::Event<Hosted>, _: Time) {
        match event {
            node::Event::Home(channel, event) => self.told(channel, event),
            node::Event::Stranger { channel, peer, theirs, .. } => self.stranger(channel, peer, &theirs),
            node::Event::Ended(channel, ending) => self.ended(channel, ending),
            // It had ended when the call came.
            node::Event::Unserved(node::Command::Home(channel, Command::Calls(calls))) => {
                for command in calls.iter().filter_map(ClientCommand::command) {
                    self.told(channel, Event::Client(ClientEvent { command, fate: Fate::NotSent }));
                }
            }
            node::Event::Malformed { peer, error, .. } => {
                warn!("{peer} sent what is no message ({error}): the session with it is over");
            }
            node::Event::Added(_) | node::Event::Unserved(_) => {}
            node::Event::Occupied(_) => unreachable!("a name that is in use is refused before"),
            node::Event::Guest(..) => unreachable!("there are no guests"),
        }
    }

    fn drained(&mut self, _: Time) {
        let mut told = mem::take(&mut self.told);
        for endpoint in told.drain(..) {
            self.pass_on(endpoint);
        }
        self.told = told;
    }

    fn turned(&mut self, node: &Node<Hosted>) {
        self.dropped.follow(node.figures());
    }

    fn disk_failed(&mut self, error: &DiskError) {
        for seat in lock(&self.shared.seats).values() {
            self.shared.end(seat, format!("the host's disk has failed: {error}"), Behind::Nothing);
        }
    }

    fn answer(&self, _: &Node<Hosted>, _: DomainId) -> Answer {
        Answer { presence: Presence::Settled, pass: Bytes::new() }
    }
}

/// So many refusals are kept for those who wait for them.
const REFUSED_MAX: usize = 16;

/// So many processes and sets are remembered of a name.
const HEARD_MAX: usize = 64;

/// A replica whose executor is so many bytes of orders behind ends.
const BACKLOG_BYTES_MAX: usize = 256 << 20;

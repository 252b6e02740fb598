//! A turn of a replica whose service is executed on the thread that serves the links.

use std::time::Instant;

use quorate_protocol::{
    Context, Input, Protocol, Sink,
    service::{self, Replica},
};

use super::{
    executor::Broken,
    inline::{Inline, Upshot, is_news, is_work, may_wait},
    service_endpoint::{Below, Event, ServiceEndpoint, Set},
};

impl Inline {
    /// Passes an input to the replica, and executes its orders. Events that do not concern the service's code
    /// go to the host.
    pub(super) fn give(
        &mut self,
        cx: &mut Context<'_>,
        (set, replica, input): (Set, &mut Replica, Input<Replica>),
        out: &mut dyn Sink<ServiceEndpoint>,
    ) -> Upshot {
        let mut upshot = Upshot::Fine;
        let ends = matches!(input, Input::Drained | Input::Persisted(_));
        let Inline { performer, results, inputs, orders, broken, meter } = self;
        inputs.push_back(input);
        loop {
            if let Some(input) = inputs.pop_front() {
                let emit = |_: &mut dyn Sink<ServiceEndpoint>, event| orders.push_back(event);
                replica.handle(cx, input, &mut Below { out, set: Some(set), emit });
            } else if orders.front().is_none_or(|order| may_wait(order) && replica.holds_too_much()) {
                break;
            }
            if orders.is_empty() {
                continue;
            }
            let (begun, mut count, was_broken) = (Instant::now(), 0, *broken);
            while let Some(event) = orders
                .pop_front_if(|order| !may_wait(order) || !results.are_long() && !replica.holds_too_much())
            {
                if is_news(&event) {
                    out.emit(Event::Replica(event));
                    continue;
                }
                if matches!(event, service::Event::Revert) {
                    out.emit(Event::Replica(service::Event::Revert));
                }
                count += u32::from(is_work(&event));
                if *broken {
                    continue;
                }
                if let Err(Broken(why)) = performer.perform(event, results) {
                    *broken = true;
                    upshot = Upshot::Broken(why);
                }
            }
            if count > 0 && !*broken && meter.is_full(begun.elapsed(), count) {
                upshot = Upshot::Long;
            }
            let before = inputs.len();
            inputs.extend(results.drain().map(Input::Command));
            if *broken && !was_broken {
                inputs.push_back(Input::Command(service::Command::Resign));
            }
            if ends && inputs.len() > before {
                inputs.push_back(Input::Drained);
            }
        }
        if !*broken {
            performer.give_copies();
        }
        match upshot {
            // A thread would not know the waiting orders, so the service gets one in a later turn.
            Upshot::Long if !orders.is_empty() => Upshot::Fine,
            upshot => upshot,
        }
    }
}

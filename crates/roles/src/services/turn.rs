//! A turn of a replica whose service is executed by the replica's endpoint.

use quorate_protocol::{
    Context, Input, Protocol, Sink,
    service::{self, Replica},
};

use super::{
    endpoint::{Below, Event, ServiceEndpoint},
    endpoint_host::{EndpointHost, InlineExecutor},
    executor::Broken,
    inline::{Inline, Upshot, is_news, is_work, may_wait},
    set::Set,
};

impl<X: InlineExecutor> Inline<X> {
    /// Passes an input to the replica, and executes the orders that follow from it. Passes events that do not
    /// concern the service's code to the host.
    pub(super) fn give<H: EndpointHost<Executor = X>>(
        &mut self,
        cx: &mut Context<'_>,
        (set, replica, input): (Set, &mut Replica, Input<Replica>),
        out: &mut dyn Sink<ServiceEndpoint<H>>,
    ) -> Upshot {
        let mut upshot = Upshot::Fine;
        let ends = matches!(input, Input::Drained | Input::Persisted(_));
        let Inline { executor, results, inputs, orders, broken } = self;
        inputs.push_back(input);
        loop {
            if let Some(input) = inputs.pop_front() {
                let emit = |_: &mut dyn Sink<ServiceEndpoint<H>>, event| orders.push_back(event);
                replica.handle(cx, input, &mut Below { out, set: Some(set), emit });
            } else if orders.front().is_none_or(|order| may_wait(order) && replica.holds_too_much()) {
                break;
            }
            if orders.is_empty() {
                continue;
            }
            let (mut count, was_broken) = (0, *broken);
            executor.begin_batch();
            while let Some(event) = orders
                .pop_front_if(|order| !may_wait(order) || !results.is_long() && !replica.holds_too_much())
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
                if let Err(Broken(why)) = executor.perform(cx, event, &mut |result| results.put(result)) {
                    *broken = true;
                    upshot = Upshot::Broken(why);
                }
            }
            if count > 0 && !*broken && executor.end_batch(count) {
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
            executor.give_copies(cx);
        }
        match upshot {
            // Orders still wait here, and a thread would not receive them. So the service gets its thread in
            // a later turn.
            Upshot::Long if !orders.is_empty() => Upshot::Fine,
            upshot => upshot,
        }
    }
}

//! The common part of the service programs in this directory. Each program hosts a replica of its service, or
//! calls the service.

use std::{env, process, thread, time::Duration};

use quorate::{
    Error, Node, Wait,
    service::{Begin, Service, Stub},
};

/// Runs a program by its arguments: `--listen ADDRESS --found`, `--listen ADDRESS --join ADDRESSES`, or
/// `--call ADDRESSES` with words that `call` executes. `call` returns `None` for words that it does not know.
pub(crate) fn run<S: Service>(
    name: &str,
    serve: impl Fn(&Node, Begin) -> Result<(), Error>,
    words_of_calls: &str,
    call: impl Fn(&Stub<S>, &[&str]) -> Option<Result<(), Error>>,
) {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match &words[..] {
        ["--listen", address, "--found"] => {
            Some(host(name, address, &[], |node| serve(node, Begin::Found { replicas: 3 })))
        }
        ["--listen", address, "--join", seeds] => {
            Some(host(name, address, &addresses(seeds), |node| serve(node, Begin::Join)))
        }
        ["--call", hosts, rest @ ..] => match connect(name, &addresses(hosts)) {
            Ok(stub) => call(&stub, rest),
            Err(error) => Some(Err(error)),
        },
        _ => None,
    };
    match outcome {
        Some(Ok(())) => {}
        Some(Err(error)) => {
            eprintln!("{error}");
            process::exit(1);
        }
        None => {
            eprintln!(
                "usage: {name} --listen ADDRESS --found | --listen ADDRESS --join ADDRESSES | --call ADDRESSES {words_of_calls}"
            );
            process::exit(2);
        }
    }
}

fn addresses(list: &str) -> Vec<&str> {
    list.split(',').collect()
}

fn connect<S: Service>(name: &str, hosts: &[&str]) -> Result<Stub<S>, Error> {
    quorate::connect(hosts.iter().copied()).wait()?.service(name)
}

/// Hosts a replica, and prints the changes of the replica's state, until the replica ends for good.
fn host(
    name: &str,
    address: &str,
    seeds: &[&str],
    serve: impl Fn(&Node) -> Result<(), Error>,
) -> Result<(), Error> {
    let node = Node::builder().listen(address).seeds(seeds.iter().copied()).start().wait()?;
    serve(&node)?;
    println!("listens at {}", node.address());
    let mut shown = None;
    loop {
        let status = node.replica_status(name).expect("it is served here");
        if let Some(why) = status.ended {
            return Err(Error::Start { why });
        }
        let now = (status.replicas.len(), status.serving);
        if shown.replace(now) != Some(now) {
            println!("{} replicas{}", now.0, if now.1 { ", led from here" } else { "" });
        }
        thread::sleep(Duration::from_millis(100));
    }
}

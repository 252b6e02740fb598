//! Tests that a member asks for links to the members to which it speaks first.

use super::*;
use crate::rubberband::{
    Client, MemberInfo,
    config::State,
    sample::{RecordingSink, SUPER, process, town},
};

const ME: u64 = 30;

/// Builds a configuration of storage processes 1, 2, … (one per letter), a super, and these gateways.
fn config(states: &str, gateways: &[u64]) -> Config {
    let keys: Vec<u64> = (0..states.len() as u64).map(|at| 10 * at).collect();
    let mut state = State::from(town(1, &keys, states));
    let info = MemberInfo { role: Role::Gateway, name: String::new(), address: String::new() };
    state.members.extend(gateways.iter().map(|&node| (process(node), info.clone())));
    Config::from(state)
}

/// Returns the links that process [`ME`] of this role asks for and gives up when one configuration follows
/// another.
fn links(role: Role, before: Option<&Config>, after: &Config) -> (Vec<u64>, Vec<u64>) {
    let me = Peer { id: process(ME), address: String::new() };
    let (name, member) = (String::new(), MemberSettings::default());
    let membership = Membership::new(me, role, name, member, Duration::from_secs(1), None, None);
    let mut said: RecordingSink<Client> = RecordingSink::default();
    membership.meet(before, after, &mut said);
    let nodes = |all: Vec<ProcessId>| all.into_iter().map(|process| process.node).collect();
    (nodes(said.reached), nodes(said.forgotten))
}

#[test]
fn every_role_seeks_supers_and_some_seek_storage() {
    let all = config("AA", &[ME, 31]);
    for (role, sought) in
        [(Role::Gateway, vec![1, 2, SUPER]), (Role::Storage, vec![1, 2, SUPER]), (Role::Super, vec![SUPER])]
    {
        assert_eq!(links(role, None, &all), (sought, vec![]), "{role:?}");
    }
}

#[test]
fn a_member_seeks_newcomers_once_and_itself_never() {
    let before = config("AA", &[ME, 31]);
    let more = config("AAA", &[ME, 31, 32]);
    assert_eq!(links(Role::Gateway, Some(&before), &more), (vec![3], vec![]));
    assert_eq!(links(Role::Gateway, Some(&more), &more), (vec![], vec![]));
    assert_eq!(links(Role::Gateway, Some(&more), &before), (vec![], vec![3]), "gateways are not sought");
    // A storage process that joins does not ask for a link to itself.
    let mut state = State::from(before.clone());
    let info = MemberInfo { role: Role::Storage, name: String::new(), address: String::new() };
    state.members.insert(process(ME), info);
    let joined = Config::from(state);
    assert_eq!(links(Role::Storage, None, &joined), (vec![1, 2, SUPER], vec![]));
}

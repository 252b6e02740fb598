//! Operators' commands among three routers, one of which may fall silent.

use super::*;
use crate::{
    Generation, Input,
    ecast::{
        rig::{Routers, peer},
        toy::process,
    },
    paxos,
};

#[test]
fn two_operators_whose_commands_conflict_each_get_their_own_answer() {
    let mut domain = Routers::founded();
    let leader = domain.leader();
    let others: Vec<ProcessId> = domain.routers.keys().copied().filter(|id| *id != leader).collect();
    // Removing both followers would leave one router of three.
    domain.ask(leader, 1, Change::Remove(others[0]));
    domain.ask(leader, 2, Change::Remove(others[1]));
    domain.run_until(|it| it.ended.len() == 2);
    assert_eq!(domain.ended, [(1, Ok(())), (2, Err(RouterRefusal::Change(ChangeRefusal::TooFew)))]);
}

#[test]
fn two_operators_at_two_routers_each_get_their_own_answer() {
    let mut domain = Routers::founded();
    let leader = domain.leader();
    let others: Vec<ProcessId> = domain.routers.keys().copied().filter(|id| *id != leader).collect();
    let nobody = Peer { id: process(9), address: String::from("nowhere") };
    domain.ask(others[0], 1, Change::Add(nobody));
    domain.ask(others[1], 2, Change::Remove(leader));
    domain.run_until(|it| it.ended.len() == 2);
    domain.ended.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(domain.ended, [(1, Err(RouterRefusal::Change(ChangeRefusal::Unreachable))), (2, Ok(()))]);
}

#[test]
fn a_change_outlives_the_leader_that_was_asked() {
    let mut domain = Routers::founded();
    let leader = domain.leader();
    let asked = *domain.routers.keys().find(|id| **id != leader).expect("there are three");
    domain.silent = Some(leader);
    domain.ask(asked, 1, Change::Remove(leader));
    domain.run_until(|it| !it.ended.is_empty());
    assert_eq!(domain.ended, [(1, Ok(()))]);
}

#[test]
fn commands_that_are_refused_end_at_once() {
    let mut domain = Routers::founded();
    let leader = domain.leader();
    domain.ask(leader, 1, Change::Add(peer(1)));
    let reform = RouterCommand::Reform { id: CommandId(2), patience: Duration::from_secs(1) };
    domain.give(leader, Input::Command(reform));
    let members = vec![peer(1)];
    let (id, before, patience) = (CommandId(3), Generation::FIRST, Duration::from_secs(1));
    domain.give(leader, Input::Command(RouterCommand::Refound { id, before, members, patience }));
    let lives = paxos::ReformRefusal::LeaderLives;
    let refused = [(1, Ok(())), (2, Err(lives.into())), (3, Err(RefoundRefusal::NotFresh.into()))];
    assert_eq!(domain.ended, refused);
}

use super::*;
use crate::rubberband::sample::{SUPER, process, range, town, write_header};

const ROUTER: u64 = 8;

/// Formats the storage processes that are members: `2!` is unreachable, `2~` away, `2?` suspected.
fn standing(config: &Config) -> String {
    let one = |(&it, state): (&ProcessId, &StorageState)| {
        let mark = match state {
            StorageState::Unreachable => "!",
            StorageState::Away { .. } => "~",
            _ if config.suspected.contains_key(&it) => "?",
            _ => "",
        };
        format!("{}{mark}", it.node)
    };
    config.storage.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Applies messages, the first at position 100, and returns the resulting configuration. `?12`: a super
/// suspects 1 and 2. `-12@100`: the super removes 1 and 2 as far as they are suspected since 100. `1@100`:
/// process 1 refutes that suspicion. `L1`: process 1 leaves. `X1`: it is declared lost. `A1`: it goes away.
/// `b1`: it runs again. `B1`: it has caught up.
fn after(config: &Config, messages: &str) -> Config {
    let mut config = config.clone();
    for (at, message) in (100..).map(Position).zip(messages.split_whitespace()) {
        let (kind, rest) = message.split_at(1);
        let (nodes, since) = rest.split_once('@').unwrap_or((rest, "0"));
        let named = nodes.chars().map(|digit| process(u64::from(digit.to_digit(10).expect("a digit"))));
        let named: Vec<ProcessId> = named.collect();
        let suspected = Position(since.parse().expect("a position"));
        let (sender, control) = match kind {
            "?" => (process(SUPER), Control::Suspect { processes: named }),
            "-" => {
                let witnesses = vec![process(ROUTER)];
                let removal = |process| Removal { process, suspected, witnesses: witnesses.clone() };
                let removals = named.into_iter().map(removal).collect();
                (process(SUPER), Control::Remove { removals })
            }
            "L" => (named[0], Control::Leave),
            "A" => (named[0], Control::Away),
            "b" => (named[0], Control::Back { caught_up: false }),
            "B" => (named[0], Control::Back { caught_up: true }),
            "X" => (process(SUPER), Control::DeclareLost { process: named[0] }),
            node => (process(node.parse().expect("a node")), Control::Refute { suspected }),
        };
        let changed = Rubberband::apply(&config, at, sender, &control.encode());
        if let Some(changed) = changed.unwrap_or_else(|why| panic!("{message} is refused: {why:?}")) {
            config = changed;
        }
    }
    config
}

#[test]
fn suspects_are_judged_together() {
    let pair = town(2, &[0, 10, 20, 30], "AAAA");
    for (messages, expected) in [
        // A dead process is removed by the second step, not by the first.
        ("?1", "1? 2 3 4"),
        ("?1 -1@100", "2 3 4"),
        // Two suspected neighbours both stay: it makes no difference whether one message removes both, or two
        // messages do, even after separate suspicions.
        ("?12 -12@100", "1! 2! 3 4"),
        ("?12 -1@100", "1! 2? 3 4"),
        ("?1 ?2 -1@100 -2@101", "1! 2! 3 4"),
        // Two suspects that share no range do not prevent each other's removal.
        ("?13 -13@100", "2 4"),
        // The live suspect refutes, and only then can the dead one be removed.
        ("?12 -12@100 1@100", "1 2! 3 4"),
        ("?12 -12@100 1@100 -2@100", "1 3 4"),
    ] {
        assert_eq!(standing(&after(&pair, messages)), expected, "{messages}");
    }
    let three = town(3, &[0, 10, 20, 30], "AAAA");
    assert_eq!(standing(&after(&three, "?12 -12@100")), "3 4", "a third has everything");
    assert_eq!(standing(&after(&three, "?1234 -1234@100")), "1! 2! 3! 4!", "nobody goes");
}

#[test]
fn a_suspicion_that_was_refuted_is_void() {
    let town = town(3, &[0, 10, 20, 30], "AAAA");
    for (messages, expected) in [
        ("?1 1@100", "1 2 3 4"),
        ("?1 1@100 -1@100", "1 2 3 4"),
        // An old removal does not act on a new suspicion, and an old refutation does not end a new suspicion.
        ("?1 1@100 ?1 -1@100", "1? 2 3 4"),
        ("?1 1@100 ?1 1@100", "1? 2 3 4"),
        ("?1 1@100 ?1 -1@102", "2 3 4"),
        // A second suspicion of the same process keeps the position of the first. Without a suspicion, nobody
        // is removed.
        ("?1 ?1 -1@101", "1? 2 3 4"),
        ("-1@0", "1 2 3 4"),
        // A process can refute only for itself.
        ("?1 2@100", "1? 2 3 4"),
    ] {
        assert_eq!(standing(&after(&town, messages)), expected, "{messages}");
    }
}

#[test]
fn a_leaving_process_with_the_last_rows_stays() {
    let town = town(2, &[0, 10], "AA");
    assert_eq!(standing(&after(&town, "L1")), "2");
    assert_eq!(standing(&after(&town, "?1 L2")), "1? 2!");
    assert_eq!(standing(&after(&town, "?1 L2 2@101")), "1? 2", "it is told, and lives on");
}

#[test]
fn an_away_process_is_a_replica_and_no_source() {
    let (pair, three) = (town(2, &[0, 10, 20, 30], "AAAA"), town(3, &[0, 10, 20, 30], "AAAA"));
    for (town, messages, expected) in [
        (&pair, "A1", "1~ 2 3 4"),
        (&pair, "A1 b1", "1~ 2 3 4"),
        (&pair, "A1 b1 B1", "1 2 3 4"),
        (&pair, "B1", "1 2 3 4"),
        // A process whose neighbour is away must stay. A process that shares no range with an away process
        // may go away.
        (&pair, "A1 A2", "1~ 2 3 4"),
        (&pair, "A1 A3", "1~ 2 3~ 4"),
        (&pair, "?2 A1", "1 2? 3 4"),
        (&three, "A1 A2 A3", "1~ 2~ 3 4"),
        // A process is not removed if its ranges would then rest on an away process. The away process is not
        // removed either while it may have the last replica of a range.
        (&pair, "A1 ?2 -2@101", "1~ 2! 3 4"),
        (&pair, "A1 ?2 -2@101 ?1 -1@103", "1! 2! 3 4"),
        (&pair, "A1 ?1 -1@101", "2 3 4"),
        // After the away process is back, the suspected one can be removed.
        (&pair, "A1 ?2 -2@101 B1 -2@101", "1 3 4"),
        // An unreachable process that was away refutes like any other.
        (&pair, "A1 ?2 -2@101 ?1 -1@103 1@103", "1 2! 3 4"),
    ] {
        assert_eq!(standing(&after(town, messages)), expected, "{messages}");
    }
    let standby = after(&self::town(2, &[0, 10, 20], "AAS"), "A3");
    assert_eq!(standby.storage[&process(3)], StorageState::Away { on_ring: false });
    assert_eq!(after(&standby, "B3").storage[&process(3)], StorageState::Standby);
    let moving = self::town(2, &[0, 10, 20], "ARA");
    assert_eq!(standing(&after(&moving, "A1")), "1 2 3", "rows are moving");
    let stranger = Rubberband::apply(&pair, Position(1), process(SUPER), &Control::Away.encode());
    assert_eq!(stranger, Err(refusal::NOT_ALLOWED));
}

#[test]
fn an_away_process_takes_writes_and_delays_nobody() {
    let away = after(&town(2, &[0, 10, 20, 30], "AAAA"), "A1");
    let found = away.write_destinations(&[Range { low: 0, high: 9 }]).expect("2 has it");
    assert_eq!(found.processes[..], [process(1), process(2)]);
    assert_eq!(found.groups[..], [0b10], "one is enough, and it is not the one that is away");
    for offset in 0..2 {
        let readers = away.readers(&[Range { low: 0, high: 9 }], offset).expect("2 has it");
        assert_eq!(readers[..], [process(2)]);
        let assigned = away.assign_write(&[Range { low: 0, high: 9 }], offset).expect("2 has it");
        let answers: Vec<_> =
            assigned.iter().filter(|it| !it.answers.is_empty()).map(|it| it.process).collect();
        assert_eq!((assigned.len(), answers), (2, vec![process(2)]));
    }
    assert_eq!(Rubberband::pace(&away, process(1)), Pace::Away);
    assert!(away.segments().iter().all(|segment| !away.is_lost(segment)));
}

#[test]
fn only_supers_suspect_and_never_themselves() {
    let town = town(2, &[0, 10], "AA");
    let apply =
        |sender, control: Control| Rubberband::apply(&town, Position(1), process(sender), &control.encode());
    let suspect = |node| Control::Suspect { processes: vec![process(node)] };
    assert_eq!(apply(1, suspect(2)), Err(refusal::NOT_ALLOWED));
    assert_eq!(apply(1, Control::Remove { removals: Vec::new() }), Err(refusal::NOT_ALLOWED));
    assert_eq!(apply(SUPER, suspect(SUPER)), Ok(None));
    assert_eq!(apply(SUPER, suspect(77)), Ok(None), "a stranger");
}

#[test]
fn no_process_is_removed_on_the_suspicion_of_one_witness() {
    let town = after(&town(2, &[0, 10, 20, 30], "AAAA"), "?1");
    for (witnesses, allowed) in [
        (vec![], false),
        (vec![ROUTER], true),
        (vec![7, ROUTER], true),
        (vec![SUPER], false),
        (vec![1], false),
        (vec![ROUTER, SUPER], false),
        (vec![ROUTER, ROUTER], false),
        (vec![ROUTER, 7], false),
    ] {
        let witnesses: Vec<ProcessId> = witnesses.into_iter().map(process).collect();
        let removal = Removal { process: process(1), suspected: Position(100), witnesses: witnesses.clone() };
        let remove = Control::Remove { removals: vec![removal] }.encode();
        let applied = Rubberband::apply(&town, Position(101), process(SUPER), &remove);
        assert_eq!(applied.is_ok(), allowed, "{witnesses:?}");
    }
}

/// Returns a life of a node: its incarnation is `number`.
fn life(node: u64, number: u128) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(number) }
}

/// Lets `process` join at 200 with the rows of place `place` that its former life had.
fn keeping(config: &Config, process: ProcessId, former: ProcessId, place: u64, through: u64) -> Config {
    let keeps = KeptRows { former, place, through: Position(through) };
    let (role, name, address) = (Role::Storage, String::new(), String::new());
    let join = Control::Join { role, name, address, terms: None, keeps: Some(keeps) };
    let changed = Rubberband::apply(config, Position(200), process, &join.encode());
    changed.expect("it may join").expect("it joins")
}

fn dismissed(config: &Config, process: ProcessId) -> Result<Option<Config>, Refusal> {
    let dismiss = Control::Dismiss { process }.encode();
    Rubberband::apply(config, Position(300), super::super::sample::process(SUPER), &dismiss)
}

#[test]
fn a_keeper_is_dismissed_only_once_others_have_its_rows() {
    let town = after(&town(2, &[0, 10, 20, 30], "AAAA"), "?1 -1@100");
    let keeper = life(1, 77);
    let kept = keeping(&town, keeper, process(1), 0, 99);
    let gone = dismissed(&kept, keeper).expect("2 and 4 have everything").expect("it goes");
    assert_eq!(gone.storage[&keeper], StorageState::Standby);
    assert_eq!(dismissed(&gone, keeper), Err(refusal::WRONG_STATE), "once");
    let doubted = after(&kept, "?2");
    assert_eq!(dismissed(&doubted, keeper), Err(refusal::WRONG_STATE), "2 may be dead");
    let leave = Rubberband::apply(&doubted, Position(201), keeper, &Control::Leave.encode());
    assert_eq!(leave, Ok(None), "nor does it leave");
    for (former, place, through) in [(process(2), 0, 99), (process(1), 5, 99), (process(1), 0, 200)] {
        let other = keeping(&town, keeper, former, place, through);
        assert_eq!(other.storage[&keeper], StorageState::Standby, "{former} {place} {through}");
    }
}

#[test]
fn a_range_goes_on_from_the_keeper_that_knows_most() {
    let town = after(&town(2, &[0, 10, 20, 30], "AAAA"), "?1 -1@100 ?2 -2@102");
    assert_eq!(standing(&town), "2! 3 4");
    let (early, late) = (life(1, 77), life(2, 77));
    let keeper = |config: &Config| config.keeper(&config.segments()[0]).map(|(keeper, _)| keeper);
    let both = keeping(&keeping(&town, early, process(1), 0, 90), late, life(2, 50), 10, 95);
    assert_eq!(keeper(&both), None, "2 may return");
    let lost = after(&both, "X2");
    assert_eq!(keeper(&lost), Some(late));
    let standby = |config: &Config| {
        let mut state = State::from(config.clone());
        state.storage.insert(process(5), StorageState::Standby);
        state.storage.insert(process(6), StorageState::Standby);
        Config::from(state)
    };
    let replace = |config: &Config, old: u64, new: u64, source: Option<ProcessId>| {
        let ring: Vec<Range> = config.ranges_of(process(old));
        let copy = ring.into_iter().filter_map(|range| match range.low {
            0 => Some((range, source?)),
            10 => Some((range, process(3))),
            _ => Some((range, process(4))),
        });
        let (old, new, expected) = (process(old), process(new), config.placement);
        let replace = Control::Replace { expected, old, new, copy: copy.collect() };
        Rubberband::apply(config, Position(250), process(SUPER), &replace.encode())
    };
    let lost = standby(&lost);
    for refused in [None, Some(early), Some(process(4))] {
        assert_eq!(replace(&lost, 1, 5, refused), Err(refusal::range(0)), "{refused:?}");
    }
    let moving = replace(&lost, 1, 5, Some(late)).expect("it knows most").expect("it moves");
    // As long as 5 receives the range, no other process may receive it, even if the import of 5 fails.
    assert_eq!(replace(&moving, 2, 6, Some(late)), Err(refusal::range(0)));
    assert_eq!(dismissed(&moving, late), Err(refusal::WRONG_STATE));
}

#[test]
fn only_supers_and_a_gateway_at_its_address_take_the_place_of_a_former_life() {
    let join = |config: &Config, role, at: &str, number| {
        let (name, address) = (String::new(), String::from(at));
        let join = Control::Join { role, name, address, terms: None, keeps: None };
        let joined = Rubberband::apply(config, Position(200), life(20, number), &join.encode());
        assert_eq!(
            joined == Err(refusal::NODE_IN_USE),
            Rubberband::not_admitted(config, life(20, number), &join.encode()).is_some(),
            "what is refused is told"
        );
        joined.map(|joined| joined.expect("it joins"))
    };
    let town = town(2, &[0, 10], "AA");
    for (role, at, next, next_at, taken) in [
        (Role::Gateway, "here", Role::Gateway, "here", true),
        (Role::Gateway, "here", Role::Gateway, "there", false),
        (Role::Gateway, "here", Role::Super, "here", false),
        (Role::Super, "here", Role::Super, "there", true),
        (Role::Super, "here", Role::Gateway, "here", false),
        (Role::Storage, "here", Role::Storage, "here", false),
    ] {
        let first = join(&town, role, at, 1).expect("nobody has the node");
        let case = format!("{role:?} at {at}, then {next:?} at {next_at}");
        match join(&first, next, next_at, 2) {
            Ok(second) => {
                assert!(taken, "{case}");
                let lives = [1, 2].map(|number| second.members.contains_key(&life(20, number)));
                assert_eq!(lives, [false, true], "{case}");
            }
            Err(why) => assert!(!taken && why == refusal::NODE_IN_USE, "{case}: {why:?}"),
        }
    }
}

/// Adds a client, which joins at 200; its session is its node's number.
fn with_client(config: &Config, node: u64) -> (Config, ProcessId) {
    let client = life(node, u128::from(node));
    let (role, name, address) = (Role::Gateway, String::new(), String::new());
    let join = Control::Join { role, name, address, terms: None, keeps: None };
    let joined = Rubberband::apply(config, Position(200), client, &join.encode());
    (joined.expect("it may join").expect("it joins"), client)
}

#[test]
fn numbers_that_a_session_has_forgotten_stay_forgotten() {
    let (town, other) = with_client(&town(2, &[0, 10], "AA"), 20);
    let (mut town, client) = with_client(&town, 21);
    let session = client.incarnation.0;
    let apply = |config: &Config, sender, below, kept: &[u64]| {
        let forget = Control::Forget { session, below, kept: kept.to_vec() };
        Rubberband::apply(config, Position(201), sender, &forget.encode())
    };
    let forgotten = |config: &Config| -> Vec<u64> {
        let is_forgotten = |number: &u64| config.is_forgotten(RequestId { session, number: *number });
        (0..25).filter(is_forgotten).collect()
    };
    assert!(forgotten(&town).is_empty());
    assert_eq!(apply(&town, other, 10, &[]), Err(refusal::NOT_ALLOWED), "it is not its session");
    for (below, kept, remain, expected) in [
        // Of `kept`, only open numbers below `below` count.
        (5, vec![3, 5, 7], Some(vec![3]), vec![0, 1, 2, 4]),
        // A forgotten number stays forgotten, even if a later message has a lower `below` or lists the
        // number.
        (4, vec![1, 2], Some(vec![3]), vec![0, 1, 2, 4]),
        (5, vec![2, 3], Some(vec![3]), vec![0, 1, 2, 4]),
        (7, vec![2, 3, 5], Some(vec![3, 5]), vec![0, 1, 2, 4, 6]),
        (7, vec![], None, vec![0, 1, 2, 3, 4, 5, 6]),
    ] {
        if let Some(changed) = apply(&town, client, below, &kept).expect("it is its session") {
            town = changed;
        }
        assert_eq!(forgotten(&town), expected, "below {below} but {kept:?}");
        let kept = town.kept.get(&session).map(|kept| kept.iter().copied().collect::<Vec<_>>());
        assert_eq!(kept, remain, "below {below}");
    }
    let over = apply(&town, process(SUPER), u64::MAX, &[24]).expect("a super may").expect("it ends");
    assert_eq!(forgotten(&over).len(), 25);
    assert!(!over.sessions.contains_key(&session) && !over.kept.contains_key(&session));
    assert_eq!(apply(&over, client, 9, &[]), Err(refusal::EXPIRED));
}

#[test]
fn a_keeper_stands_for_its_former_life_up_to_its_last_position() {
    let town = after(&town(2, &[0, 10, 20, 30], "AAAA"), "?1 -1@100");
    let kept = keeping(&town, life(1, 77), process(1), 0, 99);
    assert!(kept.has_keeper_of(process(1), Position(99)));
    assert!(!kept.has_keeper_of(process(1), Position(100)));
    assert!(!kept.has_keeper_of(process(2), Position(99)));
}

#[test]
fn a_refusal_names_the_refused_range() {
    for low in [0, 512, 1 << 40, 3 << 62] {
        assert_eq!(refusal::as_range(refusal::range(low)), Some(low));
    }
    assert_eq!(refusal::as_range(refusal::range(1023)), Some(512), "rounded down");
    for other in [refusal::PLACEMENT_CHANGED, refusal::NO_RING, refusal::OTHER_TERMS] {
        assert_eq!(refusal::as_range(other), None);
    }
}

#[test]
fn an_unreachable_process_changes_the_placement_once() {
    let town = town(2, &[0, 10], "AA");
    let versions = |messages: &str| {
        let changed = after(&town, messages);
        (changed.placement - town.placement, changed.storage[&process(2)])
    };
    assert_eq!(versions("?1"), (0, StorageState::Active), "a suspicion moves nothing");
    assert_eq!(versions("?1 L2"), (1, StorageState::Unreachable));
    assert_eq!(versions("?1 L2 L2"), (1, StorageState::Unreachable), "it is so already");
    assert_eq!(versions("?1 L2 2@101"), (2, StorageState::Active), "it takes writes again");
}

#[test]
fn a_process_with_other_terms_is_not_admitted() {
    let town = town(2, &[0, 10], "AA");
    let own = town.terms();
    for (terms, joins) in
        [(None, true), (Some(own), true), (Some(Terms { replicas: own.replicas + 1, ..own }), false)]
    {
        let (name, address) = (String::new(), String::new());
        let join = Control::Join { role: Role::Gateway, name, address, terms, keeps: None }.encode();
        let joined = Rubberband::apply(&town, Position(200), process(20), &join);
        assert_eq!(joined.is_ok(), joins, "{terms:?}: {joined:?}");
        let refusal = Rubberband::not_admitted(&town, process(20), &join);
        assert_eq!(refusal, (!joins).then_some(NotAdmitted::Terms(own)), "{terms:?}");
    }
}

/// Adds standbys.
fn with_standbys(config: &Config, nodes: &[u64]) -> Config {
    let mut state = State::from(config.clone());
    let info = MemberInfo { role: Role::Storage, name: String::new(), address: String::new() };
    for &node in nodes {
        state.members.insert(process(node), info.clone());
        state.storage.insert(process(node), StorageState::Standby);
    }
    Config::from(state)
}

#[test]
fn a_ring_is_placed_once_and_only_as_expected() {
    let bare = with_standbys(&town(2, &[], ""), &[1, 2]);
    let place = |config: &Config, expected| {
        let place = Control::Place { expected, ring: vec![(0, process(1)), (10, process(2))] };
        Rubberband::apply(config, Position(1), process(SUPER), &place.encode())
    };
    assert_eq!(place(&bare, bare.placement + 1), Err(refusal::PLACEMENT_CHANGED), "others came meanwhile");
    let placed = place(&bare, bare.placement).expect("it fits").expect("it changes");
    assert_eq!(placed.ring.len(), 2);
    let again = with_standbys(&placed, &[1, 2]);
    assert_eq!(place(&again, again.placement), Err(refusal::PLACEMENT_CHANGED), "there is a ring");
}

#[test]
fn a_process_that_may_hold_the_only_copy_is_not_replaced() {
    let replace = |states: &str, suspected: &str| {
        let config = after(&with_standbys(&town(2, &[0, 10, 20], states), &[5]), suspected);
        let source = |range: &Range| {
            let segment = config.segments().iter().find(|segment| segment.range == *range)?;
            let mut others = segment.replicas.iter().filter(|replica| **replica != process(1));
            others.find(|replica| config.storage.get(replica) == Some(&StorageState::Active)).copied()
        };
        let copy = config.ranges_of(process(1)).into_iter();
        let copy = copy.filter_map(|range| Some((range, source(&range)?))).collect();
        let replace = Control::Replace { expected: config.placement, old: process(1), new: process(5), copy };
        Rubberband::apply(&config, Position(200), process(SUPER), &replace.encode()).map(drop)
    };
    assert_eq!(replace("AAA", ""), Ok(()), "others have all of it");
    assert_eq!(replace("DAA", ""), Ok(()), "and the place is free");
    assert_eq!(replace("AAA", "?2"), Err(refusal::range(0)), "one of them is in doubt");
    assert_eq!(replace("UAA", ""), Err(refusal::range(0)), "it is waited for, whoever else is there");
    let (stranger, expected) = (process(77), 0);
    let config = with_standbys(&town(2, &[0, 10, 20], "AAA"), &[5]);
    let replace = Control::Replace { expected, old: stranger, new: process(5), copy: Vec::new() };
    let applied = Rubberband::apply(&config, Position(200), process(SUPER), &replace.encode());
    assert_eq!(applied, Err(refusal::WRONG_STATE));
}

#[test]
fn a_message_goes_to_a_table_that_is_there_and_under_an_id_that_is_known() {
    let (mut town, client) = with_client(&town(2, &[0, 10], "AA"), 77);
    let table = Control::CreateTable { name: String::from("t"), definition: Bytes::new() };
    let created = Rubberband::apply(&town, Position(201), process(SUPER), &table.encode());
    town = created.expect("it may").expect("it is new");
    let forget = Control::Forget { session: 77, below: 2, kept: Vec::new() };
    let forgotten = Rubberband::apply(&town, Position(202), client, &forget.encode());
    let forgotten = forgotten.expect("it is its session").expect("it is news");
    let (known, _) = town.table("t").expect("just made");
    let made_up = RequestId::made_up(5 << 32);
    let to = |config: &Config, table: u32, request: Option<RequestId>| {
        let mut header = DataHeader { table, ..write_header(&[range(0, 4)], true) };
        header.name.request = request.unwrap_or(header.name.request);
        let id = MessageId { sender: client, number: 1 };
        let body = header.encode(b"operation");
        Rubberband::destinations(config, id, Class::Data, &body).map(|to| to.processes.len())
    };
    for table in [DataHeader::NO_TABLE, known] {
        assert_eq!(to(&town, table, None), Ok(2));
        assert_eq!(to(&forgotten, table, None), Err(refusal::EXPIRED));
        assert_eq!(to(&forgotten, table, Some(made_up)), Ok(2), "those expire by themselves");
    }
    assert_eq!(to(&town, known + 1, None), Err(refusal::NO_SUCH_TABLE));
}

/// An altered table has another number, so that messages bound by its earlier definition are refused.
#[test]
fn an_altered_table_keeps_its_name_and_gets_another_number() {
    let (mut town, client) = with_client(&town(2, &[0, 10, 20], "AAA"), 77);
    for name in ["t", "u"] {
        let table = Control::CreateTable { name: name.to_owned(), definition: Bytes::new() };
        let created = Rubberband::apply(&town, Position(201), client, &table.encode());
        town = created.expect("it may").expect("it is new");
    }
    let number = |config: &Config, name: &str| config.table(name).map(|(table, _)| table);
    let (t, u) = (number(&town, "t").unwrap(), number(&town, "u").unwrap());
    let alter = |config: &Config, tables: &[(u32, &str)]| {
        let alteration = |&(table, name): &(u32, &str)| TableChange::Alter {
            table,
            name: name.to_owned(),
            definition: Bytes::from_static(b"later"),
            columns: Bytes::new(),
        };
        let control = Control::Define { changes: tables.iter().map(alteration).collect() };
        Rubberband::apply(config, Position(202), client, &control.encode())
    };
    let altered = alter(&town, &[(t, "t"), (u, "v")]).expect("it may").expect("it is news");
    assert!(!altered.tables.contains_key(&t) && !altered.tables.contains_key(&u));
    assert_eq!(number(&altered, "t"), Some(u + 1));
    assert_eq!((number(&altered, "u"), number(&altered, "v")), (None, Some(u + 2)));
    assert_eq!(&altered.tables[&(u + 1)].definition[..], b"later");

    assert_eq!(alter(&altered, &[(t, "t")]), Err(refusal::NO_SUCH_TABLE));
    assert_eq!(alter(&town, &[(t, "u")]), Err(refusal::TABLE_EXISTS));
    assert_eq!(alter(&town, &[(t, "t"), (t, "w")]), Err(refusal::NO_SUCH_TABLE));
    let exchanged = alter(&town, &[(u, "t"), (t, "w")]).expect("it may").expect("it is news");
    assert_eq!((number(&exchanged, "t"), number(&exchanged, "w")), (Some(u + 1), Some(u + 2)));

    // Earlier builds cannot decode the message.
    let earlier = Config::from(State { routing: DEFINITIONS_SINCE - 1, ..State::from(town.clone()) });
    assert_eq!(alter(&earlier, &[(t, "t")]), Err(refusal::MALFORMED));
    // Rows of a range without a complete replica may come back from a process that lacks the message.
    for stands in [StorageState::Unreachable, StorageState::Receiving { change: Position(1) }] {
        let mut state = State::from(town.clone());
        state.storage.values_mut().for_each(|state| *state = stands);
        assert_eq!(alter(&Config::from(state), &[(t, "t")]), Err(refusal::WRONG_STATE));
    }
}

#[test]
fn a_message_that_names_a_key_twice_is_malformed() {
    let (town, client) = with_client(&town(2, &[0, 10], "AA"), 77);
    let to = |ranges: &[Range]| {
        let header = DataHeader { table: DataHeader::NO_TABLE, ..write_header(ranges, true) };
        let (id, body) = (MessageId { sender: client, number: 1 }, header.encode(b"operation"));
        Rubberband::destinations(&town, id, Class::Data, &body).map(|to| to.processes.len())
    };
    assert_eq!(to(&[range(5, 9), range(0, 4)]), Ok(2));
    for twice in
        [[range(0, 4), range(4, 9)], [range(4, 9), range(0, 4)], [range(0, 9), range(2, 3)], [range(7, 7); 2]]
    {
        assert_eq!(to(&twice), Err(refusal::MALFORMED), "{twice:?}");
    }
}

#[test]
fn a_joining_process_receives_the_configuration() {
    let town = town(2, &[0, 10], "AA");
    let (name, address) = (String::new(), String::new());
    let join = Control::Join { role: Role::Gateway, name, address, terms: None, keeps: None }.encode();
    let leave = Control::Leave.encode();
    let goes = |body: &Bytes, to: u64| {
        let id = MessageId { sender: process(1), number: 1 };
        Rubberband::attachment(&town, id, body, process(to)).is_some()
    };
    assert_eq!(
        [goes(&join, 1), goes(&join, 2), goes(&leave, 1), goes(&leave, 2)],
        [true, false, false, false]
    );
}

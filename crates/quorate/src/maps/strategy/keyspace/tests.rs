//! Tests the answers to requests, and the undoing of changes.

use std::{collections::BTreeMap, time::Duration};

use super::*;

const SECOND: u64 = 1_000_000_000;

fn b(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> Request {
    Request::Put {
        pairs: vec![(b(key), b(value))],
        life: Life::Unlimited,
        when: When::Always,
        return_old: false,
    }
}

/// A keyspace that takes requests at given times.
#[derive(Default)]
struct World(Keyspace);

impl World {
    fn ask(&mut self, now: u64, request: &Request) -> KeyspaceAnswer {
        let (answer, changes) = self.0.decide(request, now);
        assert!(!request.is_read() || changes.is_empty());
        self.0.apply_all(&changes);
        answer
    }

    fn get(&mut self, now: u64, key: &str) -> Option<String> {
        match self.ask(now, &Request::Read(vec![b(key)])) {
            KeyspaceAnswer::Found(found) => match &found[..] {
                [(Value::String(value), _)] => Some(String::from_utf8(value.to_vec()).unwrap()),
                [(Value::Nothing, None)] => None,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

fn done(count: i64) -> KeyspaceAnswer {
    KeyspaceAnswer::Done { count, before: Value::Nothing }
}

#[test]
fn strings_are_written_on_conditions() {
    let mut world = World::default();
    let conditional = |when, return_old| Request::Put {
        pairs: vec![(b("k"), b("2"))],
        life: Life::Unlimited,
        when,
        return_old,
    };
    assert_eq!(world.ask(0, &conditional(When::Present, false)), done(0));
    assert_eq!(world.ask(0, &conditional(When::Absent, false)), done(1));
    assert_eq!(world.ask(0, &conditional(When::Absent, false)), done(0));
    let expected = KeyspaceAnswer::Done { count: 1, before: Value::String(b("2")) };
    assert_eq!(world.ask(0, &conditional(When::Present, true)), expected);
    // A conditional write of several keys writes all of them or none.
    let pairs = vec![(b("a"), b("1")), (b("k"), b("1"))];
    let several = Request::Put { pairs, life: Life::Unlimited, when: When::Absent, return_old: false };
    assert_eq!(world.ask(0, &several), done(0));
    assert_eq!(world.get(0, "a"), None);
    let keys = ["k", "a", "k"].map(b).into();
    assert_eq!(world.ask(0, &Request::Delete { keys, return_old: false }), done(1));
    assert_eq!(world.ask(0, &several), done(1));
    assert_eq!(world.ask(0, &Request::Size), done(2));
}

#[test]
fn only_decimal_values_can_be_incremented() {
    let mut world = World::default();
    let add = |added| Request::Add { key: b("n"), added };
    assert_eq!(world.ask(0, &add(5)), done(5));
    assert_eq!(world.ask(0, &add(-7)), done(-2));
    assert_eq!(world.ask(0, &add(i64::MIN)), KeyspaceAnswer::Refused(Refusal::Overflow));
    assert_eq!(world.ask(0, &Request::Append { key: b("n"), tail: b("x") }), done(3));
    assert_eq!(world.ask(0, &add(1)), KeyspaceAnswer::Refused(Refusal::NoNumber));
    let field = |added| Request::AddField { key: b("h"), name: b("f"), added };
    assert_eq!(world.ask(0, &field(3)), done(3));
    assert_eq!(world.ask(0, &field(i64::MAX)), KeyspaceAnswer::Refused(Refusal::Overflow));
    let text = Request::PutFields { key: b("h"), fields: vec![(b("f"), b("x"))], absent: false };
    assert_eq!(world.ask(0, &text), done(0));
    assert_eq!(world.ask(0, &field(1)), KeyspaceAnswer::Refused(Refusal::NoNumberInField));
    for wrong in [
        Request::Add { key: b("h"), added: 1 },
        Request::Append { key: b("h"), tail: b("x") },
        Request::AddField { key: b("n"), name: b("f"), added: 1 },
        Request::DeleteFields { key: b("n"), names: vec![b("f")] },
        Request::Delete { keys: vec![b("h")], return_old: true },
    ] {
        assert_eq!(world.ask(0, &wrong), KeyspaceAnswer::Refused(Refusal::WrongType), "{wrong:?}");
    }
}

#[test]
fn a_hash_ends_with_its_last_field() {
    let mut world = World::default();
    let fields = |absent| Request::PutFields {
        key: b("h"),
        fields: vec![(b("x"), b("1")), (b("y"), b("2")), (b("x"), b("3"))],
        absent,
    };
    assert_eq!(world.ask(0, &fields(true)), done(2));
    assert_eq!(world.ask(0, &fields(true)), done(0));
    assert_eq!(world.ask(0, &fields(false)), done(0));
    let hash = Value::Hash(vec![(b("x"), b("3")), (b("y"), b("2"))]);
    assert_eq!(world.ask(0, &Request::Read(vec![b("h")])), KeyspaceAnswer::Found(vec![(hash, None)]));
    let without =
        |names: &[&str]| Request::DeleteFields { key: b("h"), names: names.iter().map(|it| b(it)).collect() };
    assert_eq!(world.ask(0, &without(&["x", "x", "z"])), done(1));
    assert_eq!(world.ask(0, &without(&["y"])), done(1));
    assert_eq!(world.ask(0, &Request::Size), done(0));
    assert_eq!(world.0.bytes(), 0);
}

#[test]
fn a_life_ends_at_its_time() {
    let mut world = World::default();
    let live = |life, only| Request::Live { key: b("k"), life, only, return_old: false };
    let seconds = |count| Life::For(Duration::from_secs(count));
    assert_eq!(world.ask(0, &live(seconds(1), Only::Always)), done(0));
    world.ask(0, &put("k", "v"));
    for (life, only, count) in [
        (seconds(5), Only::Limited, 0),
        (seconds(5), Only::Longer, 0),
        (seconds(5), Only::Shorter, 1),
        (seconds(4), Only::Longer, 0),
        (seconds(6), Only::Longer, 1),
        (seconds(9), Only::Unlimited, 0),
        (Life::Unlimited, Only::Always, 1),
        (Life::Unlimited, Only::Always, 0),
        (Life::Until(3 * SECOND), Only::Unlimited, 1),
    ] {
        assert_eq!(world.ask(0, &live(life, only)), done(count), "{life:?} {only:?}");
    }
    // The first write keeps the key's life. A later write begins a new life.
    let kept = Request::Put {
        pairs: vec![(b("k"), b("w"))],
        life: Life::Kept,
        when: When::Always,
        return_old: false,
    };
    world.ask(1, &kept);
    assert_eq!(world.get(3 * SECOND - 1, "k").as_deref(), Some("w"));
    assert_eq!(world.get(3 * SECOND, "k"), None);
    assert_eq!(world.ask(3 * SECOND, &Request::Size), done(0));
    assert_eq!(world.ask(3 * SECOND, &live(Life::Unlimited, Only::Always)), done(0));
    // An expired key occupies memory until a later write removes it.
    assert_eq!(world.0.len(), 1);
    world.ask(3 * SECOND, &put("other", "v"));
    assert_eq!(world.0.len(), 1);
    // A life that has already ended removes the key at once.
    assert_eq!(
        world.ask(
            4 * SECOND,
            &Request::Live { key: b("other"), life: Life::Until(1), only: Only::Always, return_old: false }
        ),
        done(1)
    );
    assert!(world.0.is_empty());
}

#[test]
fn values_and_keys_are_bounded() {
    let mut world = World::default();
    let large = "x".repeat(VALUE_BYTES_MAX);
    assert_eq!(world.ask(0, &put("k", &large)), KeyspaceAnswer::Refused(Refusal::TooLarge));
    world.ask(0, &put("k", &large[2..]));
    assert_eq!(
        world.ask(0, &Request::Append { key: b("k"), tail: b("x") }),
        done(VALUE_BYTES_MAX as i64 - 1)
    );
    let more = Request::Append { key: b("k"), tail: b("x") };
    assert_eq!(world.ask(0, &more), KeyspaceAnswer::Refused(Refusal::TooLarge));
    let half = b(&large[..VALUE_BYTES_MAX / 2]);
    let field =
        |name| Request::PutFields { key: b("h"), fields: vec![(b(name), half.clone())], absent: false };
    assert_eq!(world.ask(0, &field("a")), done(1));
    assert_eq!(world.ask(0, &field("b")), KeyspaceAnswer::Refused(Refusal::TooLarge));
    // Pretend that other writers have filled the map up to its bound.
    world.0.bytes = BYTES_MAX;
    assert_eq!(world.ask(0, &put("full", "")), KeyspaceAnswer::Refused(Refusal::Full));
    assert_eq!(world.ask(0, &Request::Delete { keys: vec![b("k")], return_old: false }), done(1));
}

#[test]
fn a_keyspace_scan_lists_every_key_once() {
    let mut world = World::default();
    for number in 0..1_000 {
        world.ask(0, &put(&format!("key {number}"), "v"));
    }
    let (mut behind, mut found) = (None, Vec::new());
    loop {
        match world.ask(0, &Request::Scan { behind, limit: 7 }) {
            KeyspaceAnswer::Keys { keys, next } => {
                assert!(keys.len() >= 7 || next.is_none());
                found.extend(keys.into_iter().map(|(key, _)| key));
                behind = next;
            }
            other => panic!("{other:?}"),
        }
        if behind.is_none() {
            break;
        }
    }
    assert_eq!(found.len(), 1_000);
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 1_000);
    assert_eq!(
        world.ask(0, &Request::Scan { behind: Some(u64::MAX), limit: 7 }),
        KeyspaceAnswer::Keys { keys: Vec::new(), next: None }
    );
}

/// Two replicas execute the same random requests. The second undoes and repeats every change, and is now and
/// then restored from its bytes. Both must agree with each other, and with a plain model of strings.
#[test]
fn replicas_agree_and_changes_are_taken_back() {
    let mut seed = 7u64;
    let mut draw = move |end: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % end
    };
    let (mut one, mut two) = (World::default(), Keyspace::default());
    let mut model: BTreeMap<Bytes, Bytes> = BTreeMap::new();
    for step in 0..20_000u64 {
        let now = step * SECOND / 100;
        let key = b(&format!("k{}", draw(20)));
        let value = b(&draw(100).to_string());
        let life = match draw(4) {
            0 => Life::For(Duration::from_millis(draw(400))),
            1 => Life::Kept,
            _ => Life::Unlimited,
        };
        let when = [When::Always, When::Absent, When::Present][draw(3) as usize];
        let request = match draw(9) {
            0 => Request::Delete { keys: vec![key, b("k1")], return_old: draw(2) == 0 },
            1 => Request::Live { key, life, only: Only::Always, return_old: false },
            2 => Request::Add { key, added: draw(9) as i64 },
            3 => Request::Append { key, tail: value },
            4 => Request::PutFields { key, fields: vec![(value.clone(), value)], absent: draw(2) == 0 },
            5 => Request::DeleteFields { key, names: vec![value, b("1"), b("2")] },
            6 => Request::AddField { key, name: b("n"), added: 1 },
            _ => Request::Put { pairs: vec![(key, value)], life, when, return_old: draw(2) == 0 },
        };
        // The second replica undoes each change and applies it again. Every 500 steps it is restored from its
        // bytes.
        let (answer, changes) = two.decide(&request, now);
        let before = postcard::to_stdvec(&two).unwrap();
        let undo = two.apply_all(&changes);
        two.apply_all(&undo);
        assert_eq!(postcard::to_stdvec(&two).unwrap(), before, "{request:?}");
        two.apply_all(&changes);
        if step % 500 == 0 {
            let bytes = two.bytes();
            two = postcard::from_bytes(&postcard::to_stdvec(&two).unwrap()).unwrap();
            assert_eq!(two.bytes(), bytes);
        }
        assert_eq!(one.ask(now, &request), answer, "{request:?}");
        assert_eq!(postcard::to_stdvec(&one.0).unwrap(), postcard::to_stdvec(&two).unwrap());
        // A string that a request wrote without condition and expiry stays until another request touches its
        // key.
        for key in request.keys() {
            model.remove(key);
        }
        if let Request::Put { pairs, life: Life::Unlimited, when: When::Always, .. } = &request
            && answer != KeyspaceAnswer::Refused(Refusal::WrongType)
        {
            model.extend(pairs.iter().cloned());
        }
        if step % 100 == 0 {
            for (key, value) in &model {
                let found = one.ask(now, &Request::Read(vec![key.clone()]));
                assert_eq!(found, KeyspaceAnswer::Found(vec![(Value::String(value.clone()), None)]));
            }
        }
    }
}

#[test]
fn a_request_with_an_id_takes_effect_once() {
    let mut world = World::default();
    let add = |added| Request::Add { key: b("n"), added };
    let once = |id: &str, request: &Request| Request::once(b(id), request).unwrap();
    for (now, id, added, wanted) in [
        (0, "a", 1, done(1)),
        (SECOND, "a", 1, done(1)),
        (SECOND, "b", 1, done(2)),
        (SECOND, "a", 1, done(1)),
        // A different request under a known id is refused.
        (SECOND, "a", 2, KeyspaceAnswer::Refused(Refusal::OtherRequest)),
        // The keyspace forgets an id after ten minutes.
        (601 * SECOND, "a", 1, done(3)),
    ] {
        assert_eq!(world.ask(now, &once(id, &add(added))), wanted, "{id} at {now}");
    }
    // A repetition gets the first answer, even if the condition failed or the answer was a string.
    let set = Request::Put {
        pairs: vec![(b("s"), b("1"))],
        life: Life::Unlimited,
        when: When::Absent,
        return_old: true,
    };
    let expected = KeyspaceAnswer::Done { count: 0, before: Value::String(b("x")) };
    world.ask(0, &put("s", "x"));
    assert_eq!(world.ask(0, &once("c", &set)), expected);
    world.ask(0, &Request::Delete { keys: vec![b("s")], return_old: false });
    assert_eq!(world.ask(0, &once("c", &set)), expected);
    assert_eq!(world.get(0, "s"), None);
    // A refusal changes nothing, so the client may repeat the request.
    world.ask(0, &put("n", "x"));
    assert_eq!(world.ask(0, &once("d", &add(1))), KeyspaceAnswer::Refused(Refusal::NoNumber));
    world.ask(0, &put("n", "5"));
    assert_eq!(world.ask(0, &once("d", &add(1))), done(6));
    // `once` accepts neither a read nor a request that already has an id. The keyspace refuses bytes that are
    // not a request.
    assert_eq!(Request::once(b("e"), &Request::Size), None);
    assert_eq!(Request::once(b("e"), &once("f", &add(1))), None);
    let nested =
        Request::Once { id: b("e"), request: Bytes::from(postcard::to_stdvec(&once("f", &add(1))).unwrap()) };
    let rubbish = Request::Once { id: b("e"), request: b("\u{7f}") };
    for request in [nested, rubbish] {
        assert_eq!(world.ask(0, &request), KeyspaceAnswer::Refused(Refusal::OtherRequest));
    }
}

#[test]
fn an_oversized_answer_is_refused_before_it_is_gathered() {
    let mut world = World::default();
    world.ask(0, &put("k", &"v".repeat(1 << 19)));
    let read = |count| Request::Read(vec![b("k"); count]);
    assert!(matches!(world.ask(0, &read(31)), KeyspaceAnswer::Found(found) if found.len() == 31));
    for count in [32, 65_535] {
        assert_eq!(world.ask(0, &read(count)), KeyspaceAnswer::Refused(Refusal::Answer));
    }
}

#[test]
fn a_life_with_a_limit_becomes_shorter() {
    let mut world = World::default();
    let live = |seconds, only| Request::Live {
        key: b("k"),
        life: Life::For(Duration::from_secs(seconds)),
        only,
        return_old: false,
    };
    world.ask(0, &put("k", "v"));
    assert_eq!(world.ask(0, &live(5, Only::LimitedShorter)), done(0));
    assert_eq!(world.ask(0, &live(5, Only::Shorter)), done(1));
    assert_eq!(world.ask(0, &live(6, Only::LimitedShorter)), done(0));
    assert_eq!(world.ask(0, &live(4, Only::LimitedShorter)), done(1));
}

#[test]
fn a_keyspace_scan_lists_fewer_keys_if_they_are_long() {
    const KEY_BYTES: usize = 100 << 10;
    let mut world = World::default();
    for letter in 'a'..='p' {
        world.ask(0, &put(&letter.to_string().repeat(KEY_BYTES), ""));
    }
    let (mut found, mut behind) = (0, None);
    loop {
        let KeyspaceAnswer::Keys { keys, next } = world.ask(0, &Request::Scan { behind, limit: 1_000 })
        else {
            panic!("no keys")
        };
        assert!(keys.iter().map(|(key, _)| key.len()).sum::<usize>() < SCAN_BYTES + KEY_BYTES);
        found += keys.len();
        behind = next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(found, 16);
}

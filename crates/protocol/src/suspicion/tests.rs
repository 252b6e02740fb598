use super::*;
use crate::id::Incarnation;

fn process(node: u64) -> ProcessId {
    ProcessId { node, incarnation: Incarnation(0) }
}

/// Returns the verdict of witnesses 1 to `bench`, of which all but the last are routers. In `said`, `1u`
/// means that witness 1 has no link to the suspect, `1l` that it has a link, `1h` that it hears the suspect,
/// and `1x` that the accuser's link to witness 1 broke. `+50` lets 50 milliseconds pass.
fn verdict(bench: u64, said: &str) -> String {
    let patience = Patience::default();
    let mut now = Time::ZERO;
    let mut second_opinion = SecondOpinion::new(1, now);
    for word in said.split_whitespace() {
        if let Some(millis) = word.strip_prefix('+') {
            now = now + Duration::from_millis(millis.parse().expect("milliseconds"));
            continue;
        }
        let (witness, opinion) = word.split_at(1);
        let witness = process(witness.parse().expect("a witness"));
        match opinion {
            "u" => second_opinion.record(witness, Opinion::Unlinked, now),
            "l" => second_opinion.record(witness, Opinion::Linked, now),
            "h" => second_opinion.record(witness, Opinion::Heard, now),
            _ => second_opinion.unlinked(witness),
        }
    }
    let bench: Vec<ProcessId> = (1..=bench).map(process).collect();
    let bench = bench.split_at(bench.len().saturating_sub(1));
    match second_opinion.verdict(bench, now, Duration::from_millis(200), &patience) {
        Verdict::Stays => String::from("stays"),
        Verdict::Failed(agreeing) => {
            agreeing.iter().map(|it| it.node.to_string()).collect::<Vec<_>>().join(" ")
        }
    }
}

#[test]
fn a_majority_of_all_who_were_asked_must_agree() {
    for (said, expected) in [
        ("", "stays"),
        ("1u", "stays"),
        ("1u 2u", "1 2"),
        ("1u 2u 3u 4u", "1 2 3 4"),
        // A witness that hears the suspect keeps it for 300 ms, whatever the other witnesses report.
        ("1u 2u 3u 4h", "stays"),
        ("1u 2u 3u 4h +150 1u 2u 3u 4l", "stays"),
        ("1u 2u 3u 4h +299 1u 2u 3u 4l", "stays"),
        ("1u 2u 3u 4h +300 1u 2u 3u 4l", "1 2 3 4"),
        ("1u 2u 3u 4h 4u", "1 2 3 4"),
    ] {
        assert_eq!(verdict(4, said), expected, "{said}");
    }
    assert_eq!(verdict(1, "1u"), "1", "of two both");
    assert_eq!(verdict(2, "1u"), "1", "of three two");
    assert_eq!(verdict(3, "1u"), "stays", "half is not enough");
    assert_eq!(verdict(0, ""), "stays", "and never one alone");
}

#[test]
fn a_witness_with_a_link_listens_before_it_agrees() {
    assert_eq!(verdict(2, "1l 2l"), "stays");
    assert_eq!(verdict(2, "1l 2l +150 1l 2l +149 1l 2l"), "stays");
    assert_eq!(verdict(2, "1l 2l +150 1l 2l +150 1l 2l"), "1 2");
    assert_eq!(verdict(2, "1l +150 1l +150 1l"), "1");
}

#[test]
fn an_opinion_expires_with_its_age_or_its_link() {
    assert_eq!(verdict(2, "1u 2u +200"), "1 2");
    assert_eq!(verdict(2, "1u 2u +201"), "stays");
    assert_eq!(verdict(2, "1u 1x"), "stays");
    assert_eq!(verdict(2, "1l +150 1l 1x 1l +150 1l"), "stays", "it listens anew");
}

#[test]
fn a_super_that_hears_the_suspect_keeps_it_for_a_while_and_a_router_for_ever() {
    let said = |who: &str, times| format!("1u 2u {who}") + &format!(" +200 1u 2u {who}").repeat(times);
    assert_eq!(verdict(4, &said("4h", 75)), "stays");
    assert_eq!(verdict(4, &said("4h", 76)), "1 2");
    assert_eq!(verdict(4, &said("3h", 76)), "stays");
    let silent = said("3h", 76) + " +150 1u 2u 3l +150 1u 2u 3l";
    assert_eq!(verdict(4, &silent), "1 2 3");
}

#[test]
fn the_witness_that_hears_the_suspect_is_named() {
    let assessment = |words: &[(u64, Opinion, u64)]| {
        let mut second_opinion = SecondOpinion::new(1, Time::ZERO);
        for &(witness, opinion, millis) in words {
            second_opinion.record(process(witness), opinion, Time(millis * 1_000_000));
        }
        let recent = Duration::from_millis(300);
        (second_opinion.hearer(recent).map(|it| it.node), second_opinion.is_heard(Time(500_000_000), recent))
    };
    assert_eq!(assessment(&[]), (None, false));
    assert_eq!(assessment(&[(1, Opinion::Linked, 400), (2, Opinion::Unlinked, 400)]), (None, false));
    assert_eq!(assessment(&[(1, Opinion::Linked, 400), (2, Opinion::Heard, 400)]), (Some(2), true));
    assert_eq!(assessment(&[(2, Opinion::Heard, 200), (2, Opinion::Linked, 499)]), (Some(2), false));
    assert_eq!(assessment(&[(2, Opinion::Heard, 200), (2, Opinion::Linked, 500)]), (None, false));
    assert_eq!(assessment(&[(2, Opinion::Heard, 400), (2, Opinion::Unlinked, 450)]), (None, false));
}

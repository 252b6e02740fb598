use super::*;
use crate::{
    id::Incarnation,
    rubberband::{
        Storage,
        sample::{RecordingSink, bytes, process},
    },
};

const ASKED: RequestKey = (ProcessId { node: 30, incarnation: Incarnation(30) }, 7);
const KIB: usize = 1 << 10;

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// Builds outboxes that have windows of 64 KiB, hold at most 256 KiB, and hold nothing for longer than 8 s.
fn outboxes() -> Outboxes {
    Outboxes::new(&StorageSettings {
        reply_window: 64 << 10,
        held_bytes_max: 256 << 10,
        held_max: Duration::from_secs(8),
        ..StorageSettings::default()
    })
}

fn answer(now: Time) -> OutboxAnswer<'static> {
    const RANGES: &[Range] = &[Range { low: 0, high: 9 }];
    OutboxAnswer { at: Position(3), ranges: RANGES, spent: ReadCost::default(), now }
}

fn pieces(lengths: &[usize]) -> Vec<Bytes> {
    lengths.iter().map(|length| Bytes::from(vec![b'x'; length * KIB])).collect()
}

/// Formats the replies: for a piece of an answer its KiB, with a full stop after the last piece; any other
/// reply by its kind.
fn shown(said: &RecordingSink<Storage>) -> String {
    let replies = said.sent.iter().map(|(_, message)| match message {
        Message::Direct(Direct::Reply(reply)) => match &reply.content {
            ReplyContent::Answer(bytes) => {
                format!("{}{}", bytes.len() / KIB, if reply.last { "." } else { "" })
            }
            other => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    });
    replies.collect::<Vec<_>>().join(" ")
}

fn reply(outboxes: &mut Outboxes, asked: RequestKey, lengths: &[usize], now: Time) -> String {
    let mut said = RecordingSink::<Storage>::default();
    outboxes.reply(asked, answer(now), pieces(lengths), &mut said);
    shown(&said)
}

fn consumed(outboxes: &mut Outboxes, kib: usize, now: Time) -> String {
    let mut said = RecordingSink::<Storage>::default();
    outboxes.consumed(ASKED, (kib * KIB) as u64, now, &mut said);
    shown(&said)
}

#[test]
fn bytes_in_flight_exceed_the_window_by_at_most_one_piece() {
    let mut outboxes = outboxes();
    assert_eq!(reply(&mut outboxes, ASKED, &[40, 40, 40, 40], at(1)), "40 40");
    assert_eq!(outboxes.held(), 80 << 10);
    assert_eq!(consumed(&mut outboxes, 10, at(1)), "", "70 KiB are under way");
    assert_eq!(consumed(&mut outboxes, 17, at(1)), "40", "63 were");
    assert_eq!(consumed(&mut outboxes, 5, at(1)), "", "an old count takes nothing back");
    assert!(outboxes.is_open(ASKED));
    assert_eq!(consumed(&mut outboxes, 999, at(1)), "40.", "no more was consumed than was sent");
    assert!(!outboxes.is_open(ASKED));
    assert_eq!((outboxes.held(), outboxes.open()), (0, 0));
}

/// Regression: the order may deliver a read before the client has a link, so the beginning of the answer is
/// lost. The client learned that its answer was under way, and waited for the lost beginning.
#[test]
fn an_answer_whose_beginning_met_no_link_is_asked_for_again() {
    let (mut outboxes, other) = (outboxes(), (process(31), 1));
    reply(&mut outboxes, ASKED, &[40, 40, 40], at(1));
    reply(&mut outboxes, other, &[40, 40, 40], at(1));
    // No piece of this answer has been sent.
    outboxes.begin((ASKED.0, 8), answer(at(1)), bytes("operation"));
    let mut said = RecordingSink::<Storage>::default();
    outboxes.restart(ASKED.0, &mut said);
    assert_eq!(shown(&said), "Retry");
    assert_eq!([ASKED, (ASKED.0, 8), other].map(|asked| outboxes.is_open(asked)), [false, true, true]);
    assert_eq!(outboxes.held(), 40 << 10);
}

#[test]
fn pieces_that_are_not_sent_at_once_need_room() {
    let other = (process(31), 1);
    // As many pieces are sent as fill the window, but at least one, however long that piece is. The remaining
    // pieces may fill the memory exactly.
    for (lengths, expected) in [
        (&[64, 256][..], "64"),
        (&[64, 257], "NoRoom"),
        (&[500], "500."),
        (&[63, 1, 256], "63 1"),
        (&[63, 1, 257], "NoRoom"),
        (&[63, 2, 257], "NoRoom"),
    ] {
        assert_eq!(reply(&mut outboxes(), ASKED, lengths, at(1)), expected, "{lengths:?}");
    }
    // An answer that is sent whole needs no room in the memory for held answers.
    let mut full = outboxes();
    assert_eq!(reply(&mut full, other, &[64, 256], at(1)), "64");
    assert_eq!(reply(&mut full, ASKED, &[64], at(1)), "64.");
    assert_eq!(reply(&mut full, ASKED, &[64, 1], at(1)), "NoRoom");
    assert_eq!(full.dropped(), (1, 0));
}

#[test]
fn an_answer_that_is_not_taken_is_dropped_after_a_while() {
    let mut outboxes = outboxes();
    assert_eq!(outboxes.deadline(), None);
    assert_eq!(reply(&mut outboxes, ASKED, &[64, 64], at(10)), "64");
    assert_eq!(outboxes.deadline(), Some(at(12)), "it is looked four times in eight seconds");
    let look = |outboxes: &mut Outboxes, seconds| {
        let mut said = RecordingSink::<Storage>::default();
        outboxes.look_after(at(seconds), &mut said);
        shown(&said)
    };
    assert_eq!(look(&mut outboxes, 11), "");
    assert_eq!(outboxes.deadline(), Some(at(12)), "it was not time");
    assert_eq!(look(&mut outboxes, 12), "");
    assert_eq!(outboxes.deadline(), Some(at(14)));
    assert_eq!(look(&mut outboxes, 17), "", "seven seconds");
    assert_eq!(look(&mut outboxes, 19), "Untaken", "nine");
    assert_eq!((outboxes.deadline(), outboxes.held(), outboxes.dropped()), (None, 0, (0, 1)));
}

#[test]
fn an_answer_is_kept_only_while_its_client_takes_pieces() {
    for (taken_again, expected) in [(10, "Untaken"), (20, "")] {
        let mut outboxes = outboxes();
        reply(&mut outboxes, ASKED, &[64, 64, 64, 64], at(10));
        assert_eq!(consumed(&mut outboxes, 10, at(11)), "64");
        // The client reports the same count again, or a higher one.
        consumed(&mut outboxes, taken_again, at(17));
        let mut said = RecordingSink::<Storage>::default();
        outboxes.look_after(at(20), &mut said);
        assert_eq!(shown(&said), expected, "{taken_again}");
    }
}

#[test]
fn a_page_is_for_the_answer_that_asked_for_it() {
    let mut outboxes = outboxes();
    outboxes.begin(ASKED, answer(at(1)), bytes("operation"));
    let wanted = outboxes.wanted();
    assert_eq!((wanted.len(), wanted[0].asked, wanted[0].rows), (1, ASKED, PAGE_ROWS));
    assert!(outboxes.wanted().is_empty(), "it is being read");
    let page = |outboxes: &mut Outboxes, asked, position, cursor: Option<Bytes>| {
        let mut said = RecordingSink::<Storage>::default();
        let rows = Bytes::from(vec![b'x'; 4 * KIB]);
        outboxes.page(asked, Position(position), rows, cursor, at(2), &mut said);
        shown(&said)
    };
    let on = || Some(bytes("on"));
    assert_eq!(page(&mut outboxes, (process(31), 7), 3, on()), "", "nobody waits for it");
    assert_eq!(page(&mut outboxes, ASKED, 2, on()), "", "nor for one of an earlier version");
    assert_eq!(page(&mut outboxes, ASKED, 3, on()), "4");
    let wanted = outboxes.wanted();
    assert_eq!((wanted[0].cursor.clone(), wanted[0].rows), (on(), PAGE_ROWS_MAX), "short rows: more of them");
    assert_eq!(page(&mut outboxes, ASKED, 3, None), "4.");
    assert_eq!(outboxes.released(), [Position(3)], "nobody reads that version any more");
    assert!(!outboxes.is_open(ASKED));
    // A cancelled answer releases its version once.
    outboxes.begin(ASKED, answer(at(3)), bytes("operation"));
    outboxes.cancel(|asked| asked == ASKED);
    assert_eq!((outboxes.released(), outboxes.released()), (vec![Position(3)], vec![]));
}

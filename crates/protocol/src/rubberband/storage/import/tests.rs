use super::*;
use crate::rubberband::{
    RequestId, WriteName,
    sample::{process, range, ring, texts},
    storage::replies::{KnownReply, Remembered},
};

const CHANGE: Position = Position(9);

/// Builds four processes with three replicas, of which process 2 receives 0-9, 10-19, 20-29 and 40-end.
fn config(states: &str) -> Config {
    ring(3, &[10, 20, 30, 40], states)
}

/// Builds the import of process 2: 10-19 and 40-end from 1, 20-29 from 3, 0-9 from 4.
fn import() -> Import {
    let last = range(40, u64::MAX);
    let copy = [(range(0, 9), 4), (range(10, 19), 1), (range(20, 29), 3), (range(30, 39), 3), (last, 1)];
    let copy = copy.map(|(range, node)| (range, process(node))).to_vec();
    Import::new(CHANGE, copy, config("ARAA").ranges_of(process(2)))
}

fn bytes(text: &'static str) -> Option<Bytes> {
    (!text.is_empty()).then(|| Bytes::from_static(text.as_bytes()))
}

/// Formats the next request; empty if none is due.
fn fetch(import: &mut Import) -> String {
    match import.fetch(Time(5)) {
        Some((source, ranges, cursor)) => {
            let from = match cursor {
                TransferCursor::Rows(None) => String::new(),
                TransferCursor::Rows(Some(cursor)) => format!(" from {}", String::from_utf8_lossy(&cursor)),
                TransferCursor::Replies(_) => String::from(" replies"),
            };
            format!("{}: {}{from}", source.node, texts(&ranges))
        }
        None => String::new(),
    }
}

/// Gives the import a chunk of rows that answers `asked`. An empty `cursor` means that replies follow.
fn chunk(import: &mut Import, from: u64, asked: &'static str, cursor: &'static str) -> bool {
    let next = bytes(cursor).map_or(TransferCursor::Replies(None), TransferCursor::rows);
    let (asked, rows) = (TransferCursor::Rows(bytes(asked)), Bytes::from_static(b"rows"));
    matches!(import.chunk(process(from), CHANGE, asked, rows, Some(next)), ChunkOutcome::Rows)
}

/// Gives the import a section of replies, the only one of its source.
fn replies(import: &mut Import, from: u64, section: Bytes) -> ChunkOutcome {
    import.chunk(process(from), CHANGE, TransferCursor::Replies(None), section, None)
}

/// Formats the engine's next task; empty if there is none.
fn task(import: &mut Import) -> String {
    match import.task() {
        Some(TaskKind::Import { rows }) => format!("import {}", String::from_utf8_lossy(&rows)),
        Some(TaskKind::Forget { ranges }) => format!("forget {}", texts(&ranges)),
        Some(other) => panic!("an import has no {other:?}"),
        None => String::new(),
    }
}

/// Finishes the engine's task, with an empty memory if the source has no more rows. Returns whether the
/// import is done.
fn done(import: &mut Import) -> bool {
    assert!(matches!(import.done(), ImportAction::More), "behind rows come replies");
    if import.cursor != TransferCursor::Replies(None) {
        return false;
    }
    assert!(fetch(import).ends_with(" replies"));
    let source = import.source().expect("what is not finished has a source").node;
    match replies(import, source, Bytes::from_static(&[0])) {
        ChunkOutcome::Replies(step) => matches!(step, ImportAction::Finished { .. }),
        _ => panic!("they were asked for"),
    }
}

/// Imports everything of one source. Returns whether the import is done.
fn take_source(import: &mut Import, from: u64) -> bool {
    assert!(chunk(import, from, "", ""), "a chunk of {from} was asked for");
    assert_eq!(task(import), "import rows");
    done(import)
}

/// Imports everything that is missing, and returns the requests for it.
fn take_rest(import: &mut Import) -> Vec<String> {
    let mut asked = Vec::new();
    loop {
        asked.push(fetch(import));
        let source = import.source().expect("what is not finished has a source").node;
        if take_source(import, source) {
            return asked;
        }
    }
}

#[test]
fn sources_are_read_one_by_one_and_piece_by_piece() {
    let mut import = import();
    assert_eq!(fetch(&mut import), "1: 10-19 40-end");
    assert_eq!(import.deadline(), Some(Time(5)));
    assert_eq!(fetch(&mut import), "", "once");
    assert!(chunk(&mut import, 1, "", "c"));
    assert_eq!(import.deadline(), None, "the engine's time is its own");
    assert_eq!(fetch(&mut import), "", "nothing is asked for ahead of the engine");
    assert_eq!((task(&mut import), task(&mut import)), ("import rows".into(), String::new()));
    assert!(!done(&mut import));
    assert_eq!(fetch(&mut import), "1: 10-19 40-end from c");
    assert!(chunk(&mut import, 1, "c", "d"));
    assert_eq!(task(&mut import), "import rows");
    assert!(!done(&mut import));
    assert_eq!(fetch(&mut import), "1: 10-19 40-end from d");
    assert!(chunk(&mut import, 1, "d", ""));
    assert_eq!(task(&mut import), "import rows");
    assert!(!done(&mut import));
    assert_eq!(take_rest(&mut import), ["3: 20-29", "4: 0-9"], "each from its start");
}

#[test]
fn an_import_ends_with_the_replies_that_its_sources_remember() {
    let mut import = import();
    let mut written = Vec::new();
    for (number, source) in (1..).zip([1, 3, 4]) {
        let range = import.todo[0].1[0];
        let request = RequestId { session: 7, number };
        let name = WriteName { request, print: number, repeated: true };
        let mut remembers = Replies::new(1000, 1000);
        let remembered = Remembered { at: Position(number), results: Ok(Vec::new()) };
        remembers.remember(name, range, remembered);
        written.push((name, range));
        fetch(&mut import);
        assert!(chunk(&mut import, source, "", ""));
        task(&mut import);
        assert!(matches!(import.done(), ImportAction::More));
        fetch(&mut import);
        assert!(
            matches!(replies(&mut import, source, Bytes::new()), ChunkOutcome::Not),
            "that is no section"
        );
        let (section, _) = remembers.pin(&[range]).section(&[range], None, 1000);
        match replies(&mut import, source, section) {
            ChunkOutcome::Replies(ImportAction::More) => assert_ne!(source, 4, "4 is the last"),
            ChunkOutcome::Replies(ImportAction::Finished { change, replies }) => {
                assert_eq!((source, change), (4, CHANGE));
                let known = |(name, range): &(WriteName, Range)| {
                    matches!(replies.known(*name, *range), KnownReply::Done(_))
                };
                assert!(written.iter().all(known));
            }
            _ => panic!("it was asked for"),
        }
    }
    assert!(import.is_empty());
    let lost = vec![range(10, 19)];
    assert!(Import::new(CHANGE, Vec::new(), lost).is_empty(), "what is lost has nobody to come from");
}

#[test]
fn only_the_answer_to_the_question_is_taken() {
    let mut import = import();
    fetch(&mut import);
    assert!(!chunk(&mut import, 3, "", ""), "its turn comes");
    assert!(!chunk(&mut import, 1, "c", ""), "another question's");
    let rows = Bytes::new;
    let rows_asked = || (TransferCursor::Rows(None), Some(TransferCursor::Replies(None)));
    let (asked, next) = rows_asked();
    let other = import.chunk(process(1), Position(8), asked, rows(), next);
    assert!(matches!(other, ChunkOutcome::Not), "another change's");
    let (asked, _) = rows_asked();
    let cut = import.chunk(process(1), CHANGE, asked, rows(), None);
    assert!(matches!(cut, ChunkOutcome::Not), "behind rows there is more");
    assert_eq!(task(&mut import), "", "none of them reached the engine");
    assert!(chunk(&mut import, 1, "", "c"), "and the right one still may");
    assert!(!chunk(&mut import, 1, "", "c"), "twice is once too many");
    assert_eq!(task(&mut import), "import rows");
    assert!(!chunk(&mut import, 1, "", "c"), "also while the engine is at it");
    assert!(!done(&mut import));
    assert!(!chunk(&mut import, 1, "", "c"), "also before the next question");
    assert_eq!(fetch(&mut import), "1: 10-19 40-end from c");
    assert!(!chunk(&mut import, 1, "", "c"), "also after it");
    assert!(chunk(&mut import, 1, "c", ""));
}

#[test]
fn a_question_without_an_answer_is_asked_again() {
    let mut import = import();
    fetch(&mut import);
    assert!(chunk(&mut import, 1, "", "c"));
    task(&mut import);
    done(&mut import);
    let again = "1: 10-19 40-end from c";
    assert_eq!(fetch(&mut import), again);
    import.again();
    assert_eq!((import.deadline(), fetch(&mut import).as_str()), (None, again));
    import.again();
    assert!(chunk(&mut import, 1, "c", "d"), "the first answer, late");
    assert!(!chunk(&mut import, 1, "c", "d"), "the second");
    import.again();
    assert_eq!(fetch(&mut import), "", "an answer is here");
    assert_eq!(task(&mut import), "import rows");
}

/// Process 1 dies. Its rows are dropped, and its ranges are imported again from other processes, from the
/// start.
#[test]
fn a_source_may_die_at_any_stage() {
    type NamedStage = (&'static str, fn(&mut Import));
    let stages: [NamedStage; 5] = [
        ("to be asked", |_| {}),
        ("asked", |import| {
            fetch(import);
        }),
        ("between its chunks", |import| {
            fetch(import);
            chunk(import, 1, "", "c");
            task(import);
            done(import);
        }),
        ("its rows wait for the engine", |import| {
            fetch(import);
            chunk(import, 1, "", "c");
        }),
        ("asked for more", |import| {
            fetch(import);
            chunk(import, 1, "", "c");
            task(import);
            done(import);
            fetch(import);
        }),
    ];
    for (stage, prepare) in stages {
        let mut import = import();
        prepare(&mut import);
        assert!(import.switch(&config("DRAA"), process(1)), "{stage}");
        assert_eq!(import.deadline(), None, "{stage}");
        assert_eq!(fetch(&mut import), "", "{stage}: first the rows that came are dropped");
        assert!(!chunk(&mut import, 1, "", ""), "{stage}: the dead are not heard");
        assert!(!chunk(&mut import, 3, "", ""), "{stage}: nor is who was not asked");
        assert_eq!(task(&mut import), "forget 10-19 40-end", "{stage}");
        assert_eq!((task(&mut import), fetch(&mut import)), (String::new(), String::new()), "{stage}");
        assert!(!done(&mut import), "{stage}");
        assert_eq!(take_rest(&mut import), ["3: 20-29 10-19", "4: 0-9 40-end"], "{stage}");
    }
}

#[test]
fn a_source_may_die_while_the_engine_takes_its_rows() {
    for cursor in ["c", ""] {
        let mut import = import();
        fetch(&mut import);
        assert!(chunk(&mut import, 1, "", cursor));
        assert_eq!(task(&mut import), "import rows");
        assert!(import.switch(&config("DRAA"), process(1)));
        assert!(!done(&mut import), "those rows are to be dropped");
        assert_eq!(task(&mut import), "forget 10-19 40-end");
        assert!(!done(&mut import));
        assert_eq!(take_rest(&mut import), ["3: 20-29 10-19", "4: 0-9 40-end"]);
    }
}

/// The second source dies before, or while, the engine drops the rows of the first source. None of these rows
/// may stay, because they are sent again.
#[test]
fn the_next_source_may_die_before_the_rows_of_the_first_are_dropped() {
    for dropping in [false, true] {
        // The range 10-19 is lost and begins empty, because it would have no source left after processes 1
        // and 3 have died.
        let copy =
            vec![(range(40, u64::MAX), process(1)), (range(20, 29), process(3)), (range(0, 9), process(4))];
        let mut import = Import::new(CHANGE, copy, config("ARAA").ranges_of(process(2)));
        assert_eq!(fetch(&mut import), "1: 40-end");
        assert!(chunk(&mut import, 1, "", "c"));
        assert_eq!(task(&mut import), "import rows");
        assert!(!done(&mut import));
        assert!(import.switch(&config("DRAA"), process(1)));
        if dropping {
            assert_eq!(task(&mut import), "forget 40-end");
            assert!(import.switch(&config("DRDA"), process(3)));
            assert!(!done(&mut import));
            assert_eq!(task(&mut import), "forget 20-29");
        } else {
            assert!(import.switch(&config("DRDA"), process(3)));
            assert_eq!(task(&mut import), "forget 40-end 20-29", "what came from 1 is still to be dropped");
        }
        assert!(!done(&mut import));
        assert_eq!(take_rest(&mut import), ["4: 0-9 40-end 20-29"]);
    }
}

#[test]
fn a_later_source_may_die_before_its_turn() {
    let mut import = import();
    fetch(&mut import);
    chunk(&mut import, 1, "", "c");
    task(&mut import);
    done(&mut import);
    assert_eq!(fetch(&mut import), "1: 10-19 40-end from c");
    assert!(import.reads_from(process(3)) && !import.reads_from(process(2)));
    assert!(import.switch(&config("ARDA"), process(3)));
    assert!(!import.reads_from(process(3)));
    assert_eq!(task(&mut import), "", "nothing came from it");
    assert!(chunk(&mut import, 1, "c", ""), "the present source goes on where it is");
    assert_eq!(task(&mut import), "import rows");
    assert!(!done(&mut import));
    assert_eq!(take_rest(&mut import), ["4: 0-9 20-29"]);
}

#[test]
fn the_present_source_takes_the_ranges_of_a_dead_source_after_its_own_ranges() {
    let mut import = import();
    assert_eq!(fetch(&mut import), "1: 10-19 40-end");
    assert!(import.switch(&config("ARAD"), process(4)), "0-9 is left at 1 alone");
    assert!(chunk(&mut import, 1, "", ""), "what 1 was asked for is as it was");
    assert_eq!(task(&mut import), "import rows");
    assert!(!done(&mut import));
    assert_eq!(take_rest(&mut import), ["3: 20-29", "1: 0-9"]);
}

#[test]
fn an_import_ends_if_no_other_process_holds_a_range() {
    let mut one = import();
    assert!(!one.switch(&config("DRDA"), process(1)), "10-19 was at 1, 2 and 3");
    let mut other = import();
    assert!(other.switch(&config("ARAA"), process(1)), "it refused: it is asked no more, alive or not");
    assert!(!other.switch(&config("ARAA"), process(3)), "nor is this one");
}

/// The last source dies after the import has asked it, or while the engine imports its rows. Whatever
/// follows, the import never counts as finished, because rows are missing.
#[test]
fn a_failed_import_never_finishes() {
    for at_the_engine in [false, true] {
        let copy = vec![(range(10, 19), process(1))];
        let mut import = Import::new(CHANGE, copy, config("ARDA").ranges_of(process(2)));
        fetch(&mut import);
        if at_the_engine {
            assert!(chunk(&mut import, 1, "", ""));
            assert_eq!(task(&mut import), "import rows");
        }
        assert!(!import.switch(&config("DRDA"), process(1)));
        assert!(import.is_failed());
        assert!(matches!(import.done(), ImportAction::More), "rows are missing");
        import.again();
        assert_eq!((fetch(&mut import).as_str(), import.deadline()), ("", None));
        assert!(!chunk(&mut import, 1, "", ""), "a late chunk of the dead");
        assert_eq!(task(&mut import), "");
        assert!(import.is_failed());
    }
}

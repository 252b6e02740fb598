//! Turns of the loop: commands, deadlines, records, messages to oneself, the end.

use std::{process::Command as Child, thread, time::Duration};

use bytes::Bytes;
use quorate_protocol::{Destination, Ticket};
use quorate_runtime::{
    clock,
    reactor::{CommandError, Panicked, Stopped},
};

use crate::chat::{Chat, Command, Event, Note, Process, config, eventually, id, pair};

#[test]
fn commands_of_many_threads_come_through_each_in_order() {
    const THREADS: u64 = 4;
    const COMMANDS: u64 = 50_000;
    let mut narrow = config(id(1));
    narrow.limits.commands_max = 100;
    let process = Process::with(narrow);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let handle = process.handle.clone();
            scope.spawn(move || {
                for number in 0..COMMANDS {
                    handle.command(Command::Report(thread << 32 | number)).unwrap();
                }
            });
        }
        let mut next = [0; THREADS as usize];
        for _ in 0..THREADS * COMMANDS {
            let Event::Reported(number) = process.next() else { panic!("only commands were told") };
            let next = &mut next[(number >> 32) as usize];
            assert_eq!(number & 0xffff_ffff, *next);
            *next += 1;
        }
    });
    assert_eq!(process.handle.counters().commands.get(), THREADS * COMMANDS);
}

#[test]
fn a_sleeping_loop_is_woken_by_every_single_command() {
    let process = Process::start();
    for number in 0..5_000 {
        process.command(Command::Report(number));
        assert_eq!(process.next(), Event::Reported(number));
    }
}

#[test]
fn a_deadline_comes_at_its_time_or_later() {
    let process = Process::start();
    for wait in [0, 1, 20] {
        let at = clock::now() + Duration::from_millis(wait);
        process.command(Command::Alarm(at));
        let Event::Alarm(came) = process.next() else { panic!("only the alarm was set") };
        assert!(came >= at);
    }
}

#[test]
fn a_record_is_complete_before_the_next_input_and_a_batch_ends_with_drained() {
    let process = Process::running(Chat { report_drained: true, ..Chat::default() }, config(id(1)));
    process.command(Command::Persist(2));
    let note = |number| Event::Note(process.id, Note { number, payload: Bytes::new() });
    let expected = [Event::Persisted(Ticket(2)), note(0), note(1), Event::Drained];
    for event in expected {
        assert_eq!(process.next(), event);
    }
}

#[test]
fn messages_to_self_arrive_later_and_in_order() {
    let (a, b) = pair();
    for number in 0..100 {
        let to = Destination::Many(vec![b.id, a.id]);
        a.command(Command::Send(to, Note { number, payload: Bytes::from_static(b"to both") }));
    }
    for number in 0..100 {
        a.noted(&a, number);
        b.noted(&a, number);
    }
}

#[test]
fn a_full_queue_is_reported_and_a_stopped_reactor_refuses_commands() {
    let mut narrow = config(id(1));
    narrow.limits.commands_max = 1;
    let process = Process::with(narrow);
    let (release, pause) = crossbeam_channel::bounded(0);
    process.command(Command::Report(1));
    process.command(Command::Pause(pause));
    assert_eq!(process.next(), Event::Reported(1));
    process.handle.command(Command::Report(2)).expect("waits for the place that the pause had");
    assert!(matches!(
        process.handle.try_command(Command::Report(3)),
        Err(CommandError::Full(Command::Report(3)))
    ));
    drop(release);
    assert_eq!(process.next(), Event::Reported(2));
    process.handle.stop().unwrap();
    assert!(matches!(process.handle.command(Command::Report(8)), Err(Stopped(Command::Report(8)))));
    assert!(matches!(process.handle.try_command(Command::Report(8)), Err(CommandError::Stopped(_))));
    process.handle.stop().expect("stopping twice is no error");
}

#[test]
fn a_panic_ends_the_links_and_is_reported() {
    let (a, b) = pair();
    b.command(Command::Panic);
    a.unlinked(b.id);
    assert_eq!(b.handle.wait(), Err(Panicked));
    assert_eq!(b.handle.stop(), Err(Panicked), "whoever asks is told");
    assert!(b.handle.command(Command::Report(1)).is_err());
}

/// The test counts threads and open files of its whole process, so it runs itself as a child.
#[test]
fn a_stopped_reactor_leaves_neither_threads_nor_files() {
    const MARK: &str = "QUORATE_TEST_ALONE";
    if std::env::var_os(MARK).is_none() {
        let status = Child::new(std::env::current_exe().unwrap())
            .args(["--exact", "turns::a_stopped_reactor_leaves_neither_threads_nor_files", "--nocapture"])
            .env(MARK, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let before = (count("task"), count("fd"));
    for round in 0..20 {
        let (a, b) = pair();
        a.command(Command::Reach(id(9), "localhost:1".to_owned()));
        a.note(&b, round);
        b.noted(&a, round);
        if round % 2 == 0 {
            a.handle.stop().unwrap();
            b.handle.stop().unwrap();
        }
        // In odd rounds, dropping the last handle stops the reactor.
    }
    eventually("the resolvers end", || (count("task"), count("fd")) == before);
}

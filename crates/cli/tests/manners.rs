//! Mistakes get a clear message and an exit code before anything starts.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    os::unix::fs::symlink,
};

use crate::{
    cluster::turn,
    command::{CommandOutput, LocalCluster},
};
use quorate_testing::wait_for;

#[test]
fn mistakes_in_usage_exit_with_2() {
    let place = LocalCluster::new();
    place.run(&["up", "--colour", "red"]).failed(2, "--colour");
    place.run(&["fly"]).failed(2, "fly");
    place.run(&["up", "--routers", "0"]).failed(2, "routers");
    place.run(&["up", "--storage", "2", "--replicas", "3"]).failed(2, "--replicas 3 needs at least 3");
    place.run(&["up", "--storage", "65"]).failed(2, "65 is not in 0..=64");
    place.run(&["up", "--port", "65530"]).failed(2, "are too few for the cluster");
    place.run(&["node", "--config", "nowhere.toml"]).failed(2, "nowhere.toml");

    let config = place.data_dir().with_extension("toml");
    fs::write(&config, "colour = 'red'").unwrap();
    place.run(&["node", "--config", config.to_str().unwrap()]).failed(2, "unknown field `colour`");
    assert!(!place.data_dir().exists(), "a mistake left something behind");
}

/// Shells complete the flags of the instruments, although these are another program.
#[test]
fn commands_and_flags_of_both_programs_are_completed_and_have_manual_pages() {
    let place = LocalCluster::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = place.run(&["completions", shell]);
        assert_eq!(script.code, Some(0), "{script:?}");
        for word in ["storage", "replicas", "what", "receivers", "seeds"] {
            assert!(script.out.contains(word), "{shell} does not complete {word}");
        }
    }
    place.run(&["completions", "cmd"]).failed(2, "cmd");

    let pages = place.data_dir().with_extension("man");
    let written = place.run(&["man", pages.to_str().unwrap()]);
    assert_eq!(written.code, Some(0), "{written:?}");
    for (page, text) in [("quorate", "bench"), ("quorate-up", "replicas"), ("quorate-sim", "seeds")] {
        let path = pages.join(format!("{page}.1"));
        let content = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(content.contains(text), "{page} does not name {text}: {content}");
    }
    let version = place.run(&["--version"]);
    assert!(version.out.starts_with("quorate 0.1.0"), "{version:?}");
}

#[test]
fn commands_without_a_cluster_report_its_absence() {
    let place = LocalCluster::new();
    for words in [&["down", "--yes"][..], &["status"], &["kill", "router-1"], &["sql", "select 1"]] {
        place.run(words).failed(1, "no cluster runs here");
    }
}

#[test]
fn a_directory_that_can_not_be_read_is_not_an_empty_one() {
    let place = LocalCluster::new();
    fs::write(place.data_dir(), "no directory").unwrap();
    place.run(&["status"]).failed(1, "Not a directory");
}

#[test]
fn a_port_in_use_is_named() {
    let place = LocalCluster::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for words in [&["up", "--port", &port][..], &["up", "--detach", "--port", &port]] {
        place.run(words).failed(1, &format!("gateway-1 cannot listen at 127.0.0.1:{port}"));
    }
}

/// A cluster that keeps its ports cannot use a port of another program's connection. The message says that
/// the other program need not end.
#[test]
fn a_port_held_by_a_connection_is_distinguished_from_a_listener() {
    let place = LocalCluster::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
    let port = client.local_addr().unwrap().port().to_string();
    let said = place.run(&["up", "--memory", "--detach", "--port", &port]);
    said.failed(1, "wait until that connection ends");
    assert!(said.err.contains("from which this system takes ports for outgoing connections"), "{said:?}");
}

/// B14: the exit code tells whether the work was done, even if the result cannot be printed or the directory
/// cannot be removed.
#[test]
fn the_exit_code_reflects_the_work_done() {
    let place = LocalCluster::new();
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for (round, is_full) in [false, true].into_iter().enumerate() {
        // The directory is a link. Like a mount point, a link cannot be removed as a directory.
        let kept = place.data_dir().with_extension(format!("kept{round}"));
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("quorate.toml"), "what nobody can read").unwrap();
        symlink(&kept, place.data_dir()).unwrap();
        let mut down = place.command(&["down", "--destroy", "--yes"]);
        if is_full {
            down.stdout(full());
        }
        let said = CommandOutput::of(down.output().unwrap());
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(said.err.contains("cannot report it on standard output"), is_full, "{said:?}");
        assert_eq!(fs::read_dir(&kept).unwrap().count(), 0);
        fs::remove_file(place.data_dir()).unwrap();
    }
}

/// A cluster counts as up even if its output cannot be written or read.
#[test]
fn a_cluster_starts_and_stops_with_unread_output() {
    let _turn = turn();
    let place = LocalCluster::new();
    let unread = |words: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        CommandOutput::of(place.command(words).stdout(writer).output().unwrap())
    };
    let said = unread(&[
        "up",
        "--detach",
        "--memory",
        "--port",
        "0",
        "--storage",
        "0",
        "--cells",
        "1",
        "--routers",
        "1",
    ]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(place.run(&["status"]).code, Some(0));
    // This watch ends together with the cluster.
    let mut watch = place.start(&["status", "--watch", "1"]);
    assert_eq!(unread(&["down", "--yes"]).code, Some(0));
    place.run(&["status"]).failed(1, "no cluster runs here");
    wait_for("the watch ends", || watch.try_wait().unwrap().is_some());
    let said = CommandOutput::of(watch.wait_with_output().unwrap());
    said.failed(1, "no cluster runs here");
}

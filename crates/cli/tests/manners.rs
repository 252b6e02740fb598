//! What mistakes get: a clear word and an exit code, before anything was started.

use std::{fs, net::TcpListener};

use crate::command::Place;

#[test]
fn mistakes_in_usage_exit_with_2() {
    let place = Place::new();
    place.run(&["up", "--colour", "red"]).failed(2, "--colour");
    place.run(&["fly"]).failed(2, "fly");
    place.run(&["up", "--routers", "0"]).failed(2, "routers");
    place.run(&["up", "--storage", "2", "--replicas", "3"]).failed(2, "--replicas 3 needs as many");
    place.run(&["up", "--storage", "65"]).failed(2, "65 is not in 1..=64");
    place.run(&["up", "--port", "65530"]).failed(2, "do not suffice");
    place.run(&["node", "--config", "nowhere.toml"]).failed(2, "nowhere.toml");

    let config = place.data_dir().with_extension("toml");
    fs::write(&config, "colour = 'red'").unwrap();
    place.run(&["node", "--config", config.to_str().unwrap()]).failed(2, "unknown field `colour`");
    assert!(!place.data_dir().exists(), "a mistake left something behind");
}

#[test]
fn without_a_cluster_commands_say_so() {
    let place = Place::new();
    for words in [&["down", "--yes"][..], &["status"], &["kill", "router-1"], &["sql", "select 1"]] {
        place.run(words).failed(1, "no cluster runs here");
    }
}

#[test]
fn a_directory_that_can_not_be_read_is_not_an_empty_one() {
    let place = Place::new();
    fs::write(place.data_dir(), "no directory").unwrap();
    place.run(&["status"]).failed(1, "Not a directory");
}

#[test]
fn a_port_in_use_is_named() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for words in [&["up", "--port", &port][..], &["up", "--detach", "--port", &port]] {
        place.run(words).failed(1, &format!("gateway-1 cannot listen at 127.0.0.1:{port}"));
    }
}

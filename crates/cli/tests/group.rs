//! Process groups over a cluster of real processes, which are killed and stopped.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use quorate::{
    Error, Node, Wait,
    group::{Handlers, Origin},
};
use quorate_testing::wait_for;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    cluster::{pid, process, turn},
    command::{LocalCluster, freeze},
};

/// A `quorate group join` process.
struct Member {
    child: Child,
    input: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Member {
    fn join(place: &LocalCluster) -> Member {
        let mut command = place.command(&["group", "join", "words"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (lines, out) = (Arc::new(Mutex::new(Vec::new())), child.stdout.take().unwrap());
        let shared_lines = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                shared_lines.lock().unwrap().push(line);
            }
        });
        let member = Member { input: child.stdin.take(), child, lines };
        wait_for("the member is in the group", || member.starting("view ").next().is_some());
        member
    }

    /// Returns the printed lines that begin with `with`, without that beginning.
    fn starting(&self, with: &str) -> std::vec::IntoIter<String> {
        let lines = self.lines.lock().unwrap();
        let found: Vec<String> =
            lines.iter().filter_map(|line| line.strip_prefix(with)).map(str::to_owned).collect();
        found.into_iter()
    }

    fn write_line(&mut self, line: &str) {
        // A dead process reads nothing, so this may fail.
        let _ = writeln!(self.input.as_ref().unwrap(), "{line}");
    }

    /// Returns the delivered texts by view. The first view of a joiner begins with texts that it did not see.
    fn views(&self) -> Vec<(u64, Vec<String>)> {
        let mut views = Vec::new();
        for line in self.lines.lock().unwrap().iter() {
            if let Some(view) = line.strip_prefix("view ") {
                views.push((view.split(' ').next().unwrap().parse().unwrap(), Vec::new()));
            } else if let Some(text) = line.strip_prefix("text ") {
                views.last_mut().expect("a view is first").1.push(text.to_owned());
            }
        }
        views
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns the number of members in the member's present view.
    fn members(&self) -> usize {
        let view = self.starting("view ").last().unwrap();
        view.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes each member send `count` more texts. Most are soft, three of ten are ordered, and one of ten is
/// safe.
fn talk(members: &mut [Member], from: usize, count: usize) {
    for number in from..from + count {
        for (name, member) in members.iter_mut().enumerate() {
            let verb = match number % 10 {
                0 => "safe",
                3 | 6 | 9 => "ordered",
                _ => "soft",
            };
            member.write_line(&format!("{verb} {name}-{number:05}"));
        }
    }
}

/// Checks a group that has no members and continues from a file.
fn an_idle_group_is_known_by_its_checkpoint(place: &LocalCluster) {
    let listed = |name: &str| {
        let output = place.run(&["group", "list"]);
        let line = output.out.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("{name} is not listed: {output:?}")).trim_end().to_owned()
    };
    let router = process(place, "router-1")["bound"]["listen"].as_str().unwrap().to_owned();
    let node = Node::builder().routers([router]).start().wait().unwrap();
    let files = tempfile::tempdir().unwrap();
    let group = node.group("kept").checkpoint_file(files.path().join("kept"));
    let kept = group.join(Handlers::new("kept/1", 7)).wait().unwrap();
    let columns: Vec<String> = listed("kept").split_whitespace().map(str::to_owned).collect();
    assert_eq!(columns[3..], ["-", "-"], "there is no checkpoint, and no address: it is small");
    let mark = kept.save().wait().unwrap().to_string();
    wait_for("the checkpoint is shown", || listed("kept").contains(&mark));
    kept.leave().wait().unwrap();
    wait_for("the group is idle", || listed("kept").ends_with("idle"));
    assert!(listed("kept").split_whitespace().take(3).eq(["kept", "0", "-"]), "{}", listed("kept"));
    let shown = place.run(&["group", "show", "kept"]);
    assert!(shown.code == Some(0) && shown.out.starts_with("kept, idle, checkpoint: view "), "{shown:?}");
    let shown = place.run(&["group", "show", "kept", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    assert!(shown["members"].as_array().unwrap().is_empty(), "{shown}");
    assert_ne!(shown["checkpoint"], mark, "the last member saved another checkpoint when it left");
    node.leave().wait().unwrap();
}

/// Starts a small cluster.
fn up() -> LocalCluster {
    let place = LocalCluster::new();
    let small = ["up", "--detach", "--memory", "--empty", "--port", "0", "--storage", "1", "--replicas", "1"];
    let up = place.run(&small);
    assert_eq!(up.code, Some(0), "{up:?}");
    place
}

#[test]
fn open_calls_end_and_locks_are_freed_when_all_routers_stop() {
    let _turn = turn();
    let place = up();
    let routers = ["router-1", "router-2", "router-3"].map(|name| process(&place, name));
    let addresses = routers.iter().map(|router| router["bound"]["listen"].as_str().unwrap());
    let nodes = [(); 2].map(|()| Node::builder().routers(addresses.clone()).start().wait().unwrap());
    let join = |node: &Node, name: &str| {
        let object = Handlers::new("calls/1", 0).update(|sum: &mut u64, more: u64, _: &Origin| *sum += more);
        node.group(name).join(object).wait().unwrap()
    };
    let [holder, other] = nodes.each_ref().map(|node| join(node, "calls"));
    let leaver = join(&nodes[0], "others");
    let held = holder.lock("turn").wait().unwrap();
    for router in &routers {
        freeze(pid(router));
    }
    let began = Instant::now();
    let (ordered, safe) = (holder.ordered_send(1), holder.safe_send(2));
    let left = leaver.leave();
    for ended in [ordered.wait().map(drop), safe.wait().map(drop), left.wait()] {
        // On a busy machine an operation may begin too late and is then not sent.
        assert!(matches!(ended, Err(Error::MaybeApplied { .. } | Error::OutOfTouch)), "{ended:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(holder.ordered_send(4).wait().unwrap_err(), Error::OutOfTouch);
    // The member is out of touch, so the release of the lock cannot be sent now.
    drop(held);
    for router in &routers {
        kill_process(pid(router), Signal::CONT).unwrap();
    }
    wait_for("no member holds the lock", || other.lock_holder("turn") == Ok(None));
    assert_eq!(other.lock("turn").wait().unwrap().check(), Ok(()));
    wait_for("the member sends again", || holder.ordered_send(8).wait().is_ok());
    let sums = || [&holder, &other].map(|member| member.read(|sum| *sum.state()).unwrap());
    wait_for("what may have been applied was applied once, or not", || {
        let [one, two] = sums();
        one == two && [8, 9, 10, 11].contains(&one)
    });
    assert_eq!(place.run(&["down", "--yes"]).code, Some(0));
}

#[test]
fn members_and_a_router_are_killed_and_nothing_durable_is_lost() {
    let _turn = turn();
    let place = up();
    let mut members: Vec<Member> = (0..4).map(|_| Member::join(&place)).collect();
    wait_for("every member sees all four", || members.iter().all(|member| member.members() == 4));
    let run = |arguments: &[&str]| {
        let output = place.run(arguments);
        assert_eq!(output.code, Some(0), "{output:?}");
        output.out
    };
    wait_for("the routers know the group", || {
        run(&["group", "list"]).lines().any(|line| line.split_whitespace().take(2).eq(["words", "4"]))
    });
    let shown = run(&["group", "show", "words", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let whole = shown["members"].as_array().unwrap().iter().filter(|member| member["whole"] == true);
    assert_eq!(whole.count(), 4, "{shown}");
    assert_eq!(run(&["group", "show", "words"]).lines().count(), 6);
    assert_ne!(place.run(&["group", "show", "verses"]).code, Some(0));
    an_idle_group_is_known_by_its_checkpoint(&place);

    // The test kills a member while all members send.
    talk(&mut members, 0, 300);
    wait_for("the member has sent something", || members[3].starting("done soft").count() > 20);
    members[3].signal(Signal::KILL);
    let dead = members.pop().unwrap();
    wait_for("the other members see that the member is gone", || {
        members.iter().all(|member| member.members() == 3)
    });

    // The test kills the router that founded the domain and leads.
    talk(&mut members, 300, 300);
    kill_process(pid(&process(&place, "router-1")), Signal::KILL).unwrap();
    talk(&mut members, 600, 100);
    members.iter_mut().for_each(|member| member.write_line("flush"));
    wait_for("all have flushed", || members.iter().all(|member| member.starting("done flush").count() == 1));

    // A new member joins and has the state.
    let late = Member::join(&place);
    let texts = |member: &Member| member.starting("text ").collect::<Vec<_>>();
    let state: usize = late.starting("state ").next().unwrap().parse().unwrap();
    let all = texts(&members[0]);
    assert_eq!(state, all.len());

    // All members deliver the same messages in the same views. Each sender's messages come once and in order.
    let mut seen: Vec<_> = members.iter().map(Member::views).collect();
    let shared = seen.iter().map(|views| views[0].0).max().unwrap();
    for views in &mut seen {
        views.retain(|(number, _)| *number >= shared);
        views.iter_mut().for_each(|(_, texts)| texts.sort_unstable());
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "the same messages in the same views");
    for member in &members {
        let texts = texts(member);
        for (name, other) in members.iter().chain([&dead]).enumerate() {
            let of = format!("{name}-");
            let heard: Vec<&String> = texts.iter().filter(|text| text.starts_with(&of)).collect();
            assert!(heard.is_sorted_by(|a, b| a < b), "{name}: each once, in its order");
            // Texts acknowledged to a survivor are delivered. Of the dead member's texts, only the safe ones
            // must be delivered.
            let verbs: &[&str] = if name == 3 { &["safe "] } else { &["soft ", "ordered ", "safe "] };
            for verb in verbs {
                let kept = other.starting(&format!("done {verb}"));
                let lost: Vec<String> = kept.filter(|text| heard.binary_search(&text).is_err()).collect();
                assert!(lost.is_empty(), "{name} lost {verb}{lost:?}");
            }
        }
    }
    assert!(members.iter().all(|member| member.starting("failed ").next().is_none()));

    // A member that sleeps too long is dropped, and learns so when it wakes.
    freeze(Pid::from_child(&members[1].child));
    wait_for("the stopped member is dropped", || members[0].members() == 3);
    members[0].write_line("safe while it sleeps");
    wait_for("the others go on", || late.starting("text while it sleeps").count() == 1);
    members[1].signal(Signal::CONT);
    let woken = Instant::now();
    wait_for("the command says that it is out of the group, although no line is typed", || {
        members[1].child.try_wait().unwrap().is_some_and(|status| status.code() == Some(1))
    });
    assert!(woken.elapsed() < Duration::from_secs(10), "{:?}", woken.elapsed());

    // At the end of its input a member leaves.
    drop(members[2].input.take());
    wait_for("the member leaves", || {
        members[2].child.try_wait().unwrap().is_some_and(|status| status.success())
    });
    wait_for("two are left", || members[0].members() == 2);
    assert_eq!(place.run(&["down", "--yes"]).code, Some(0));
}

//! Checkpoint files of groups: members save them, the first member of an empty group restores its file, and
//! wrong files are refused.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use quorate::{
    Error, Local, Node, Wait,
    group::{Answer, Corrupt, Group, Key, Mark, Member, Origin, Replica, Share, Snapshot},
};
use quorate_testing::wait_for;

use crate::words::{Words, said};

/// Counts the words that it receives.
#[derive(Default)]
struct Count(u64);

impl Replica for Count {
    const NAME: &'static str = "count/1";
    type Update = u64;
    type Query = ();
    type Reply = ();

    fn apply(&mut self, count: u64, _: &Origin) {
        self.0 += count;
    }
    fn query(&self, (): (), _: Share) -> Answer<()> {
        Answer::Declined
    }
    fn checkpoint(&self) -> Snapshot {
        Snapshot::of(&self.0)
    }
    fn restore(snapshot: &Snapshot) -> Result<Self, Corrupt> {
        snapshot.read().map(Count)
    }
}

/// A cluster of routers, and a directory for checkpoints.
struct Place {
    cluster: Local,
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let cluster = Local::builder().routers(3).start().wait().unwrap();
        Place { cluster, directory: tempfile::tempdir().unwrap() }
    }

    fn node(&self) -> Node {
        Node::builder().routers(self.cluster.addresses()).start().wait().unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the group at a new node, with this checkpoint file.
    fn group(&self, file: &str) -> (Node, Group) {
        let node = self.node();
        let group = node.group("words").checkpoint_file(self.file(file));
        (node, group)
    }

    fn join(&self, file: &str) -> (Node, Member<Words>) {
        let (node, group) = self.group(file);
        let member = group.join(Words::default()).wait().unwrap();
        (node, member)
    }

    fn refused(&self, file: &str) -> Error {
        let (_node, group) = self.group(file);
        group.join(Words::default()).wait().map(|member| said(&member)).unwrap_err()
    }
}

fn say(member: &Member<Words>, word: &str) {
    member.ordered_send(word.to_owned()).wait().unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn stale(error: &Error) -> (Option<Mark>, Mark) {
    match error {
        Error::Stale { file, newest } => (*file, *newest),
        other => panic!("not refused as stale: {other}"),
    }
}

#[test]
fn the_last_leaving_member_saves_and_the_first_returning_member_continues() {
    let place = Place::new();
    let (one_node, one) = place.join("one");
    let (_other_node, other) = place.join("other");
    assert!(one.is_fresh().unwrap());
    say(&one, "first");
    say(&other, "second");
    other.leave().wait().unwrap();
    one.send(String::from("soft, and last")).wait().unwrap();
    // When the node leaves, all its members leave.
    one_node.leave().wait().unwrap();
    assert_eq!(mode(&place.file("one")), 0o600);
    let (file, newest) = stale(&place.refused("other"));
    assert!(file.is_some_and(|file| file < newest), "{file:?} is older than {newest}");
    let (_node, back) = place.join("one");
    assert_eq!(said(&back), ["first", "second", "soft, and last"]);
    assert!(!back.is_fresh().unwrap());
    // If the group has members, a joiner gets their state, and ignores the content of its file.
    let (_other_node, other) = place.join("other");
    assert_eq!(said(&other).len(), 3);
    say(&other, "third");
    drop(other);
    // The last clone of the member was dropped, so the member leaves. It saves first, although no caller
    // waits for that.
    wait_for("it has left", || back.view().unwrap().members.len() == 1);
    back.leave().wait().unwrap();
    let (_node, back) = place.join("one");
    assert_eq!(said(&back).len(), 4);
}

#[test]
fn a_stale_or_missing_checkpoint_is_refused_unless_the_newer_one_is_given_up() {
    let place = Place::new();
    let (one_node, one) = place.join("one");
    let (other_node, other) = place.join("other");
    say(&one, "saved first");
    let before = one.save().wait().unwrap();
    fs::copy(place.file("one"), place.file("copy")).unwrap();
    say(&other, "saved");
    let after = one.save().wait().unwrap();
    assert!(before < after);
    say(&one, "not saved");
    // All nodes are killed.
    for (node, member) in [(one_node, one), (other_node, other)] {
        node.abandon().wait();
        drop(member);
    }
    assert_eq!(stale(&place.refused("copy")), (Some(before), after));
    let none = place.refused("none");
    assert_eq!(stale(&none), (None, after));
    assert!(none.to_string().contains(&after.to_string()), "{none}");
    let plain = place.node();
    let refused = plain.group("words").join(Words::default()).wait().map(|member| said(&member));
    assert_eq!(stale(&refused.unwrap_err()), (None, after), "a member without a file is refused as well");
    let (forced_node, group) = place.group("copy");
    let forced = group.give_up_newer_checkpoint().join(Words::default()).wait().unwrap();
    assert_eq!(said(&forced), ["saved first"]);
    forced_node.abandon().wait();
    drop(forced);
    // No member has saved since, so the earlier mark is still the newest mark. Every member with a file had
    // saved at that mark.
    let (_node, back) = place.join("other");
    assert_eq!(said(&back), ["saved first", "saved"]);
    assert!(back.save().wait().unwrap() > after);
}

#[test]
fn wrong_checkpoint_files_are_refused_and_left_unchanged() {
    let place = Place::new();
    let (_node, member) = place.join("good");
    say(&member, "kept");
    member.leave().wait().unwrap();
    let good = fs::read(place.file("good")).unwrap();
    let check = |what: &str, bytes: &[u8], why: &str| {
        fs::write(place.file(what), bytes).unwrap();
        let error = place.refused(what);
        assert!(matches!(error, Error::File { .. }) && error.to_string().contains(why), "{what}: {error}");
        assert_eq!(fs::read(place.file(what)).unwrap(), bytes);
    };
    check("torn", &good[..good.len() - 3], "cut off");
    let mut rotten = good.clone();
    *rotten.last_mut().unwrap() ^= 1;
    check("rotten", &rotten, "damaged");
    check("newer", &[b"quorate group checkpoint, format 2\n", &good[35..]].concat(), "format 2");
    check("strange", b"a letter", "not a checkpoint");
    let node = place.node();
    let others = node.group("others").checkpoint_file(place.file("good"));
    let error = others.join(Words::default()).wait().map(|member| said(&member)).unwrap_err();
    let message = error.to_string();
    assert!(
        matches!(error, Error::Mismatch { .. })
            && message.contains("`words`")
            && message.contains("`others`")
    );
    let counts = node.group("words").checkpoint_file(place.file("good")).join(Count::default()).wait();
    let error = counts.map(|member| member.read(|count| count.0)).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }) && error.to_string().contains("count/1"), "{error}");
    // These routers belong to another domain.
    let elsewhere = Local::start().wait().unwrap();
    let stranger = Node::builder().routers(elsewhere.addresses()).start().wait().unwrap();
    let foreign = stranger.group("words").checkpoint_file(place.file("good")).join(Words::default()).wait();
    let error = foreign.map(|member| said(&member)).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }) && error.to_string().contains("domain"), "{error}");
    let (_node, back) = place.join("good");
    assert_eq!(said(&back), ["kept"], "none of these took its place");
}

#[test]
fn an_unwritable_checkpoint_is_reported_and_the_member_still_leaves() {
    let place = Place::new();
    let nowhere = place.refused("no such directory/words");
    assert!(
        matches!(&nowhere, Error::File { .. }) && nowhere.to_string().contains("words.lock"),
        "{nowhere}"
    );
    let folder = place.file("folder");
    let join = || {
        fs::create_dir(&folder).unwrap();
        let joined = place.join("folder/words");
        fs::remove_dir_all(&folder).unwrap();
        joined
    };
    let (_node, member) = join();
    say(&member, "lost");
    let error = member.save().wait().unwrap_err();
    assert!(matches!(&error, Error::File { file, .. } if file.ends_with("words")), "{error}");
    say(&member, "it goes on");
    let error = member.leave().wait().unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error}");
    // A node with a member whose save fails leaves nevertheless.
    let (leaves, member) = join();
    say(&member, "lost, too");
    let error = leaves.leave().wait().unwrap_err();
    assert!(matches!(&error, Error::File { file, .. } if file.ends_with("words")), "{error}");
    // No router knows of a checkpoint, so the next group begins empty.
    let (node, back) = place.join("words");
    assert!(back.is_fresh().unwrap() && said(&back).is_empty());
    let without = node.group("without").join(Words::default()).wait().unwrap();
    assert!(matches!(without.save().wait(), Err(Error::Invalid { .. })), "it has no file");
    let unreadable = place.refused("");
    assert!(matches!(unreadable, Error::File { .. }), "a directory: {unreadable}");
}

#[test]
fn a_file_is_of_one_member_at_a_time() {
    let place = Place::new();
    let (_node, member) = place.join("one");
    let second = place.refused("one");
    assert!(
        matches!(&second, Error::File { .. }) && second.to_string().contains("another member"),
        "{second}"
    );
    say(&member, "kept");
    member.leave().wait().unwrap();
    let (_next, back) = place.join("one");
    assert_eq!(said(&back), ["kept"]);
}

#[test]
fn the_checkpoint_file_has_the_key_and_another_key_is_refused() {
    let place = Place::new();
    let (key, next) = (Key::generate(), Key::generate());
    let (_node, group) = place.group("vault");
    let member = group.key(key.clone()).join(Words::default()).wait().unwrap();
    say(&member, "secret");
    member.rotate(&next).wait().unwrap();
    member.leave().wait().unwrap();
    let file = place.file("vault");
    assert_eq!(mode(&file), 0o600);
    let (_node, group) = place.group("vault");
    let error = group.key(key.clone()).join(Words::default()).wait().map(|member| said(&member)).unwrap_err();
    let message = error.to_string();
    let both = message.contains(&key.id().to_string()) && message.contains(&next.id().to_string());
    assert!(matches!(error, Error::Mismatch { .. }) && both, "{message}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(place.refused("vault").to_string().contains("other users can read"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    // The file contains the key, so a member that may read the file needs no other key.
    let (_node, back) = place.join("vault");
    assert_eq!((said(&back), back.key()), (vec![String::from("secret")], Some(next.id())));
    let (_node, group) = place.group("mirror");
    let mirror = group.key(next).join(Words::default()).wait().unwrap();
    say(&mirror, "both have it");
    assert_eq!(said(&mirror).len(), 2);
}

#[test]
fn updates_answered_before_a_save_are_in_the_checkpoint() {
    let place = Place::new();
    let (one_node, one) = place.join("one");
    let (other_node, other) = place.join("other");
    for number in 0..50 {
        one.send(format!("soft {number}")).wait().unwrap();
        say(&other, &format!("ordered {number}"));
    }
    let saves: Vec<_> = [&one, &other, &one].iter().map(|member| member.save()).collect();
    let marks: Vec<Mark> = saves.into_iter().map(|save| save.wait().unwrap()).collect();
    let newest = *marks.iter().max().unwrap();
    for (node, member) in [(one_node, one), (other_node, other)] {
        node.abandon().wait();
        drop(member);
    }
    // At least one of the two files holds the newest checkpoint. The other member may have died before it
    // wrote.
    let back = ["one", "other"].into_iter().find_map(|file| {
        let (node, group) = place.group(file);
        let member = group.join(Words::default()).wait().ok()?;
        Some((node, member))
    });
    let (_node, back) = back.expect("one has the newest");
    assert_eq!(said(&back).len(), 100, "as of {newest}");
}

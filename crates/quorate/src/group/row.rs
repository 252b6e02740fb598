//! A row: the members of one group in this process, each in a seat.
//!
//! To the protocol a process is one party of a group. Its first member joins; those that come later ask for a seat, and members that leave
//! give theirs up, which the protocol is told in one word: the seats from the next view on. A member that comes gets the object from one that
//! is here, as of its first view; one that goes is let go by a view. As long as others wait for the object, one that has it stays.

use quorate_protocol::group::{SEATS_MAX, SeatId};

/// The members of one group in this process. Seats are of a type that it knows nothing of.
#[derive(Debug)]
pub(super) struct Row<T> {
    seated: Vec<Seated<T>>,
    /// Seats that were given out.
    given: u32,
    /// The seats that the protocol was told last.
    told: Vec<SeatId>,
    /// The process was told to leave the group.
    leaves: bool,
}

#[derive(Debug)]
struct Seated<T> {
    id: SeatId,
    seat: T,
    /// A view told it.
    inside: bool,
    /// It has the object.
    whole: bool,
    leaving: bool,
}

/// The protocol's next word.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Seats(Vec<SeatId>),
    Leave,
}

/// The consequences of a view.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Turn<T> {
    /// Members that were in the group, or have got its object already.
    pub(super) here: Vec<T>,
    /// Members that get the object from the first of those.
    pub(super) come: Vec<T>,
    /// Members that are out.
    pub(super) gone: Vec<T>,
}

impl<T: Clone> Row<T> {
    /// Of one that is about to join.
    pub(super) fn new(seat: impl FnOnce(SeatId) -> T) -> Self {
        let mut row = Row { seated: Vec::new(), given: 0, told: vec![SeatId(0)], leaves: false };
        row.take(seat).expect("it is the first");
        row
    }

    /// One more. `None`: too many are here, or the process is about to leave the group.
    pub(super) fn take(&mut self, seat: impl FnOnce(SeatId) -> T) -> Option<T> {
        if self.leaves || self.seated.len() == SEATS_MAX {
            return None;
        }
        let id = SeatId(self.given);
        self.given = self.given.checked_add(1)?;
        self.seated.push(Seated { id, seat: seat(id), inside: false, whole: false, leaving: false });
        self.get(id)
    }

    pub(super) fn get(&self, id: SeatId) -> Option<T> {
        self.seated.iter().find(|seated| seated.id == id).map(|seated| seated.seat.clone())
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = T> + '_ {
        self.seated.iter().map(|seated| seated.seat.clone())
    }

    /// Those that are told what is delivered.
    pub(super) fn inside(&self) -> impl Iterator<Item = T> + '_ {
        self.seated.iter().filter(|seated| seated.inside).map(|seated| seated.seat.clone())
    }

    /// The member that takes what the process is given, and gives what it is asked for: the oldest with the object, of those that stay if
    /// any does.
    pub(super) fn first(&self) -> Option<T> {
        let whole = || self.seated.iter().filter(|seated| seated.whole);
        let stays = whole().find(|seated| !seated.leaving);
        stays.or_else(|| whole().next()).or(self.seated.first()).map(|seated| seated.seat.clone())
    }

    /// Wants to leave.
    pub(super) fn leave(&mut self, id: SeatId) {
        if let Some(seated) = self.seated.iter_mut().find(|seated| seated.id == id) {
            seated.leaving = true;
        }
    }

    /// It has got the object.
    pub(super) fn got(&mut self, id: SeatId) {
        if let Some(seated) = self.seated.iter_mut().find(|seated| seated.id == id) {
            seated.whole = true;
        }
    }

    /// Its object is lost. Says whether others have theirs.
    pub(super) fn lose(&mut self, id: SeatId) -> bool {
        self.seated.retain(|seated| seated.id != id);
        self.seated.iter().any(|seated| seated.whole)
    }

    /// The next word to the protocol.
    pub(super) fn wish(&self) -> Wish {
        let stays = |seated: &&Seated<T>| !seated.leaving;
        if self.leaves {
            return Wish::Nothing;
        }
        if !self.seated.iter().any(|seated| stays(&seated)) {
            return Wish::Leave;
        }
        let mut wanted: Vec<SeatId> = self.seated.iter().filter(stays).map(|seated| seated.id).collect();
        if !self.seated.iter().filter(stays).any(|seated| seated.whole) {
            // Others wait for its object.
            let needed = self.seated.iter().find(|seated| seated.whole).or(self.seated.first());
            wanted.extend(needed.map(|seated| seated.id));
            wanted.sort_unstable();
            wanted.dedup();
        }
        if wanted == self.told { Wish::Nothing } else { Wish::Seats(wanted) }
    }

    /// The protocol was told.
    pub(super) fn told(&mut self, wish: Wish) {
        match wish {
            Wish::Nothing => {}
            Wish::Seats(seats) => self.told = seats,
            Wish::Leave => self.leaves = true,
        }
    }

    /// A view tells these.
    pub(super) fn view(&mut self, seats: &[SeatId]) -> Turn<T> {
        let is_first = !self.seated.iter().any(|seated| seated.inside);
        let mut turn = Turn { here: Vec::new(), come: Vec::new(), gone: Vec::new() };
        let told = &self.told;
        self.seated.retain_mut(|seated| {
            match (seated.inside, seats.contains(&seated.id)) {
                (true, true) => turn.here.push(seated.seat.clone()),
                (false, true) if is_first && turn.here.is_empty() => {
                    seated.whole = true;
                    turn.here.push(seated.seat.clone());
                }
                (false, true) => turn.come.push(seated.seat.clone()),
                (false, false) if !seated.leaving || told.contains(&seated.id) => return true,
                (_, false) => {
                    turn.gone.push(seated.seat.clone());
                    return false;
                }
            }
            seated.inside = true;
            true
        });
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(ids: &[u32]) -> Vec<SeatId> {
        ids.iter().copied().map(SeatId).collect()
    }

    fn row(count: u32) -> Row<u32> {
        let mut row = Row::new(|id| id.0);
        for next in 1..count {
            assert_eq!(row.take(|id| id.0), Some(next));
        }
        row
    }

    /// The next word to the protocol, which is said.
    fn wish(row: &mut Row<u32>) -> Wish {
        let wish = row.wish();
        row.told(row.wish());
        wish
    }

    fn turn(here: &[u32], come: &[u32], gone: &[u32]) -> Turn<u32> {
        Turn { here: here.to_vec(), come: come.to_vec(), gone: gone.to_vec() }
    }

    #[test]
    fn who_comes_gets_the_object_from_one_that_is_here() {
        let mut row = row(3);
        assert_eq!(wish(&mut row), Wish::Seats(seats(&[0, 1, 2])));
        assert_eq!(wish(&mut row), Wish::Nothing, "it was told");
        assert_eq!(row.first(), Some(0), "the state of the group is for the first");
        assert_eq!(row.view(&seats(&[0])), turn(&[0], &[], &[]));
        assert_eq!(row.inside().collect::<Vec<_>>(), [0]);
        assert_eq!(row.view(&seats(&[0, 1, 2])), turn(&[0], &[1, 2], &[]));
        assert_eq!(row.view(&seats(&[0, 1, 2])), turn(&[0, 1, 2], &[], &[]));
    }

    #[test]
    fn who_leaves_is_let_go_by_a_view_and_the_last_takes_the_process_along() {
        let mut row = row(2);
        wish(&mut row);
        row.view(&seats(&[0]));
        row.view(&seats(&[0, 1]));
        row.got(SeatId(1));
        row.leave(SeatId(0));
        assert_eq!(row.first(), Some(1), "one that stays gives states");
        assert_eq!(wish(&mut row), Wish::Seats(seats(&[1])));
        assert_eq!(row.inside().collect::<Vec<_>>(), [0, 1], "until then it is told what is delivered");
        assert_eq!(row.view(&seats(&[1])), turn(&[1], &[], &[0]));
        row.leave(SeatId(1));
        assert_eq!((wish(&mut row), wish(&mut row)), (Wish::Leave, Wish::Nothing));
        assert_eq!(row.take(|id| id.0), None, "its process is about to leave");
    }

    #[test]
    fn the_only_one_with_the_object_stays_while_others_wait_for_it() {
        let mut row = row(1);
        row.view(&seats(&[0]));
        row.take(|id| id.0);
        row.leave(SeatId(0));
        assert_eq!(wish(&mut row), Wish::Seats(seats(&[0, 1])));
        assert_eq!(row.view(&seats(&[0, 1])), turn(&[0], &[1], &[]));
        assert_eq!(wish(&mut row), Wish::Nothing, "the other one has yet to get it");
        row.got(SeatId(1));
        assert_eq!(wish(&mut row), Wish::Seats(seats(&[1])), "now it may go");
        assert_eq!(row.view(&seats(&[1])), turn(&[1], &[], &[0]));
    }

    #[test]
    fn the_first_that_gives_up_joining_waits_for_the_state_that_others_need() {
        let mut row = row(2);
        row.leave(SeatId(0));
        assert_eq!(wish(&mut row), Wish::Seats(seats(&[0, 1])));
        assert_eq!(row.view(&seats(&[0])), turn(&[0], &[], &[]));
        assert_eq!(row.view(&seats(&[0, 1])), turn(&[0], &[1], &[]));
    }

    #[test]
    fn who_gives_up_before_a_view_told_it_is_forgotten() {
        let mut row = row(2);
        row.view(&seats(&[0]));
        row.leave(SeatId(1));
        assert_eq!(wish(&mut row), Wish::Nothing);
        assert_eq!(row.view(&seats(&[0])), turn(&[0], &[], &[1]));
    }

    #[test]
    fn an_object_that_is_lost_takes_nobody_along_who_has_another() {
        let mut row = row(3);
        wish(&mut row);
        row.view(&seats(&[0]));
        row.view(&seats(&[0, 1, 2]));
        assert_eq!(row.first(), Some(0), "no other one can give it");
        assert!(!row.lose(SeatId(0)), "nobody else has it yet");
        let mut row = self::row(2);
        wish(&mut row);
        row.view(&seats(&[0]));
        row.view(&seats(&[0, 1]));
        row.got(SeatId(1));
        assert!(row.lose(SeatId(0)));
        assert_eq!(wish(&mut row), Wish::Seats(seats(&[1])));
        assert_eq!(row.view(&seats(&[0, 1])), turn(&[1], &[], &[]), "a view of before");
    }
}

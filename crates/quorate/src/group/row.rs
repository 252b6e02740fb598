//! A row: the members of one group in this process, each in a seat.
//!
//! To the protocol, a process is in a group once, with one or more seats. The process's first member joins
//! the group. Later members take further seats, and members that leave give their seats up. One command
//! informs the protocol of the seats from the next view on. A new member gets the object from another member
//! in this process, as of its first view. A member that leaves stays until a view without its seat begins. As
//! long as other members of the process wait for the object, one member that has the object stays.

use quorate_protocol::group::{SEATS_MAX, SeatId};

/// The members of one group in this process. `T` is the type of a seat, which this file only clones.
#[derive(Debug)]
pub(super) struct SeatRow<T> {
    /// Number of this row among the rows of the process. A later row of the same group has a larger number.
    life: u64,
    seated: Vec<SeatEntry<T>>,
    /// Number of seats given out so far.
    given: u32,
    /// The seats in the latest command to the protocol.
    sent: Vec<SeatId>,
    /// Whether the command to leave the group was sent to the protocol.
    leaves: bool,
}

#[derive(Debug)]
struct SeatEntry<T> {
    id: SeatId,
    seat: T,
    /// Whether a view includes the member, so that it gets deliveries.
    inside: bool,
    /// Whether the member has the object.
    whole: bool,
    leaving: bool,
}

/// The next command to the protocol about this process's seats in a group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SeatCommand {
    Nothing,
    Seats(Vec<SeatId>),
    Leave,
}

/// The consequences of a new view for the members in this process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ViewChange<T> {
    /// Members that were in the group before this view, or have got its object already.
    pub(super) here: Vec<T>,
    /// New members, which get the object from the first of `here`.
    pub(super) come: Vec<T>,
    /// Members that are no longer in the group.
    pub(super) gone: Vec<T>,
}

impl<T: Clone> SeatRow<T> {
    /// Makes the row of a member that is about to join.
    pub(super) fn new(life: u64, seat: impl FnOnce(SeatId) -> T) -> Self {
        let mut row = SeatRow { life, seated: Vec::new(), given: 0, sent: vec![SeatId(0)], leaves: false };
        row.take(seat).expect("the first seat of a row is free");
        row
    }

    /// Returns the row's number among the rows of the process.
    pub(super) fn life(&self) -> u64 {
        self.life
    }

    /// Adds a member. Returns `None` if the process has too many members of the group, or is about to leave
    /// the group.
    pub(super) fn take(&mut self, seat: impl FnOnce(SeatId) -> T) -> Option<T> {
        if self.leaves || self.seated.len() == SEATS_MAX {
            return None;
        }
        let id = SeatId(self.given);
        self.given = self.given.checked_add(1)?;
        self.seated.push(SeatEntry { id, seat: seat(id), inside: false, whole: false, leaving: false });
        self.get(id)
    }

    pub(super) fn get(&self, id: SeatId) -> Option<T> {
        self.seated.iter().find(|seated| seated.id == id).map(|seated| seated.seat.clone())
    }

    /// Returns all members.
    pub(super) fn all(&self) -> impl Iterator<Item = T> + '_ {
        self.seated.iter().map(|seated| seated.seat.clone())
    }

    /// Returns the members that get deliveries.
    pub(super) fn inside(&self) -> impl Iterator<Item = T> + '_ {
        self.seated.iter().filter(|seated| seated.inside).map(|seated| seated.seat.clone())
    }

    /// Returns the member that receives states for the process and gives its object on request: the oldest
    /// member with the object, if possible one that is not leaving.
    pub(super) fn first(&self) -> Option<T> {
        let whole = || self.seated.iter().filter(|seated| seated.whole);
        let stays = whole().find(|seated| !seated.leaving);
        stays.or_else(|| whole().next()).or(self.seated.first()).map(|seated| seated.seat.clone())
    }

    /// Marks a member as leaving.
    pub(super) fn leave(&mut self, id: SeatId) {
        if let Some(seated) = self.seated.iter_mut().find(|seated| seated.id == id) {
            seated.leaving = true;
        }
    }

    /// Notes that a member has got the object.
    pub(super) fn got(&mut self, id: SeatId) {
        if let Some(seated) = self.seated.iter_mut().find(|seated| seated.id == id) {
            seated.whole = true;
        }
    }

    /// Removes a member whose object is lost. Returns whether another member of this process has the object.
    pub(super) fn lose(&mut self, id: SeatId) -> bool {
        self.seated.retain(|seated| seated.id != id);
        self.seated.iter().any(|seated| seated.whole)
    }

    /// Returns the next command to the protocol about this process's seats in the group.
    pub(super) fn seat_command(&self) -> SeatCommand {
        let stays = |seated: &&SeatEntry<T>| !seated.leaving;
        if self.leaves {
            return SeatCommand::Nothing;
        }
        if !self.seated.iter().any(|seated| stays(&seated)) {
            return SeatCommand::Leave;
        }
        let mut wanted: Vec<SeatId> = self.seated.iter().filter(stays).map(|seated| seated.id).collect();
        if !self.seated.iter().filter(stays).any(|seated| seated.whole) {
            // Other members wait for the object, so one member that has it must stay.
            let needed = self.seated.iter().find(|seated| seated.whole).or(self.seated.first());
            wanted.extend(needed.map(|seated| seated.id));
            wanted.sort_unstable();
            wanted.dedup();
        }
        if wanted == self.sent { SeatCommand::Nothing } else { SeatCommand::Seats(wanted) }
    }

    /// Notes that this command was passed to the protocol.
    pub(super) fn sent(&mut self, seat_command: SeatCommand) {
        match seat_command {
            SeatCommand::Nothing => {}
            SeatCommand::Seats(seats) => self.sent = seats,
            SeatCommand::Leave => self.leaves = true,
        }
    }

    /// Adopts the seats of a new view. Returns the consequences for the members.
    pub(super) fn view(&mut self, seats: &[SeatId]) -> ViewChange<T> {
        let is_first = !self.seated.iter().any(|seated| seated.inside);
        let mut change = ViewChange { here: Vec::new(), come: Vec::new(), gone: Vec::new() };
        let sent = &self.sent;
        self.seated.retain_mut(|seated| {
            match (seated.inside, seats.contains(&seated.id)) {
                (true, true) => change.here.push(seated.seat.clone()),
                (false, true) if is_first && change.here.is_empty() => {
                    seated.whole = true;
                    change.here.push(seated.seat.clone());
                }
                (false, true) => change.come.push(seated.seat.clone()),
                (false, false) if !seated.leaving || sent.contains(&seated.id) => return true,
                (_, false) => {
                    change.gone.push(seated.seat.clone());
                    return false;
                }
            }
            seated.inside = true;
            true
        });
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(ids: &[u32]) -> Vec<SeatId> {
        ids.iter().copied().map(SeatId).collect()
    }

    fn row(count: u32) -> SeatRow<u32> {
        let mut row = SeatRow::new(0, |id| id.0);
        for next in 1..count {
            assert_eq!(row.take(|id| id.0), Some(next));
        }
        row
    }

    /// Returns the next command to the protocol, and notes it as sent.
    fn seat_command(row: &mut SeatRow<u32>) -> SeatCommand {
        let seat_command = row.seat_command();
        row.sent(row.seat_command());
        seat_command
    }

    fn change(here: &[u32], come: &[u32], gone: &[u32]) -> ViewChange<u32> {
        ViewChange { here: here.to_vec(), come: come.to_vec(), gone: gone.to_vec() }
    }

    #[test]
    fn a_new_member_gets_the_object_from_a_member_of_its_process() {
        let mut row = row(3);
        assert_eq!(seat_command(&mut row), SeatCommand::Seats(seats(&[0, 1, 2])));
        assert_eq!(seat_command(&mut row), SeatCommand::Nothing, "it was told");
        assert_eq!(row.first(), Some(0), "the state of the group is for the first");
        assert_eq!(row.view(&seats(&[0])), change(&[0], &[], &[]));
        assert_eq!(row.inside().collect::<Vec<_>>(), [0]);
        assert_eq!(row.view(&seats(&[0, 1, 2])), change(&[0], &[1, 2], &[]));
        assert_eq!(row.view(&seats(&[0, 1, 2])), change(&[0, 1, 2], &[], &[]));
    }

    #[test]
    fn a_leaving_member_is_released_by_a_view_and_the_last_removes_the_process() {
        let mut row = row(2);
        seat_command(&mut row);
        row.view(&seats(&[0]));
        row.view(&seats(&[0, 1]));
        row.got(SeatId(1));
        row.leave(SeatId(0));
        assert_eq!(row.first(), Some(1), "one that stays gives states");
        assert_eq!(seat_command(&mut row), SeatCommand::Seats(seats(&[1])));
        assert_eq!(row.inside().collect::<Vec<_>>(), [0, 1], "until then it is told what is delivered");
        assert_eq!(row.view(&seats(&[1])), change(&[1], &[], &[0]));
        row.leave(SeatId(1));
        assert_eq!(
            (seat_command(&mut row), seat_command(&mut row)),
            (SeatCommand::Leave, SeatCommand::Nothing)
        );
        assert_eq!(row.take(|id| id.0), None, "its process is about to leave");
    }

    #[test]
    fn the_only_holder_of_the_object_stays_while_members_wait_for_it() {
        let mut row = row(1);
        row.view(&seats(&[0]));
        row.take(|id| id.0);
        row.leave(SeatId(0));
        assert_eq!(seat_command(&mut row), SeatCommand::Seats(seats(&[0, 1])));
        assert_eq!(row.view(&seats(&[0, 1])), change(&[0], &[1], &[]));
        assert_eq!(seat_command(&mut row), SeatCommand::Nothing, "the other one has yet to get it");
        row.got(SeatId(1));
        assert_eq!(seat_command(&mut row), SeatCommand::Seats(seats(&[1])), "now it may go");
        assert_eq!(row.view(&seats(&[1])), change(&[1], &[], &[0]));
    }

    #[test]
    fn the_first_that_gives_up_joining_waits_for_the_state_that_others_need() {
        let mut row = row(2);
        row.leave(SeatId(0));
        assert_eq!(seat_command(&mut row), SeatCommand::Seats(seats(&[0, 1])));
        assert_eq!(row.view(&seats(&[0])), change(&[0], &[], &[]));
        assert_eq!(row.view(&seats(&[0, 1])), change(&[0], &[1], &[]));
    }

    #[test]
    fn a_member_that_gives_up_before_its_first_view_is_forgotten() {
        let mut row = row(2);
        row.view(&seats(&[0]));
        row.leave(SeatId(1));
        assert_eq!(seat_command(&mut row), SeatCommand::Nothing);
        assert_eq!(row.view(&seats(&[0])), change(&[0], &[], &[1]));
    }

    #[test]
    fn a_lost_object_ends_no_member_with_its_own_object() {
        let mut row = row(3);
        seat_command(&mut row);
        row.view(&seats(&[0]));
        row.view(&seats(&[0, 1, 2]));
        assert_eq!(row.first(), Some(0), "no other one can give it");
        assert!(!row.lose(SeatId(0)), "nobody else has it yet");
        let mut row = self::row(2);
        seat_command(&mut row);
        row.view(&seats(&[0]));
        row.view(&seats(&[0, 1]));
        row.got(SeatId(1));
        assert!(row.lose(SeatId(0)));
        assert_eq!(seat_command(&mut row), SeatCommand::Seats(seats(&[1])));
        assert_eq!(row.view(&seats(&[0, 1])), change(&[1], &[], &[]), "a view of before");
    }
}

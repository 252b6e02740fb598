//! Whether the routers of a cluster can still agree, and what the cluster would lose by going on without a
//! majority.
//!
//! Voting routers are identified by their whole process ids. A router that was started again is another
//! process, which knows nothing of the promises of the first. If a voter does not answer and another process
//! answers at its node, the voter is gone for good. If its node is silent, the voter may be frozen or cut
//! off, and may come back.
//!
//! During a change of the routers, the routers after the change vote. A majority of these is needed, even if
//! former routers answer.

use std::collections::BTreeSet;

use quorate_protocol::{Role, role::State};
use quorate_roles::tables::status::MemberStatus;
use serde_json::{Value, json};

use crate::reports::Report;

/// The voting routers, and their answers.
pub(crate) struct Quorum {
    /// All voters, according to the router that knows most.
    pub(crate) voters: Vec<String>,
    /// Whether these voters come from a change that is still under way.
    pub(crate) changing: bool,
    pub(crate) answering: Vec<String>,
    /// Voters whose node has since started another process, which remembers nothing.
    pub(crate) gone: Vec<String>,
    /// Silent voters, which may come back.
    pub(crate) silent: Vec<String>,
    /// The voter with the longest log among those that answer.
    pub(crate) survivor: Option<Report>,
    /// If there is no survivor, the answering member that knows most. In a cluster with tables, only members
    /// of the tables count.
    pub(crate) witness: Option<Report>,
    /// If there is no survivor, the answering cell that knows most.
    cell_witness: Option<Report>,
    /// If there is no survivor, a router that has just started and belongs to no domain.
    pub(crate) founder: Option<Report>,
    /// Highest position that an answering member has.
    pub(crate) delivered: u64,
    /// Members that do not answer. A new generation would go on without them.
    pub(crate) absent: Vec<String>,
    /// Sets of neighbours on the ring that together hold some range, and of which none answers. The rows of
    /// these ranges would be lost.
    pub(crate) ranges_gone: Vec<Vec<String>>,
}

impl Quorum {
    /// Combines these reports.
    pub(crate) fn of<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Quorum {
        let reports: Vec<&Report> = reports.into_iter().collect();
        let votes = |report: &&&Report| report.voters().contains(&report.process);
        let routers = || reports.iter().filter(|report| report.role == Role::Router);
        let furthest = |report: &&&Report| (report.generation, report.log.clone());
        let survivor = routers().filter(votes).max_by_key(furthest).copied().cloned();
        let voters = survivor.as_ref().map(|survivor| survivor.voters().to_vec()).unwrap_or_default();
        let answers: BTreeSet<&str> = reports.iter().map(|report| report.process.as_str()).collect();
        let (answering, rest): (Vec<String>, Vec<String>) =
            voters.iter().cloned().partition(|voter| answers.contains(voter.as_str()));
        let node = |process: &str| process.split('.').next().unwrap_or_default().to_owned();
        let nodes: BTreeSet<String> = answers.iter().map(|process| node(process)).collect();
        let (gone, silent) = rest.into_iter().partition(|voter| nodes.contains(&node(voter)));
        let joined =
            reports.iter().filter(|report| report.role != Role::Router && !report.members.is_empty());
        let knows_most = |is_cell: bool| {
            let of_kind = joined.clone().filter(|report| (report.role == Role::Cell) == is_cell);
            let most = of_kind
                .max_by_key(|report| (report.generation, report.config_version, report.position))
                .filter(|_| survivor.is_none());
            most.copied().cloned()
        };
        let cell_witness = knows_most(true);
        let witness = knows_most(false).or_else(|| cell_witness.clone());
        let fresh = routers().filter(|report| report.voters().is_empty());
        let founder = fresh.min_by_key(|report| report.node).filter(|_| survivor.is_none()).copied().cloned();
        let knows = survivor.as_ref().or(witness.as_ref());
        let members = knows.into_iter().chain(&cell_witness).flat_map(|knows| &knows.members);
        let absent: BTreeSet<String> = members
            .filter(|member| !answers.contains(member.process.as_str()))
            .map(|member| member.name.clone())
            .collect();
        let delivered =
            reports.iter().filter(|report| report.role != Role::Router).map(|report| report.position);
        Quorum {
            delivered: delivered.max().unwrap_or(0),
            ranges_gone: knows.map(|knows| ranges_gone(knows, &answers)).unwrap_or_default(),
            changing: survivor.as_ref().is_some_and(|survivor| survivor.routers_open.is_some()),
            voters,
            answering,
            gone,
            silent,
            survivor,
            witness,
            cell_witness,
            founder,
            absent: absent.into_iter().collect(),
        }
    }

    /// Returns the members that a founder has to ask in a domain without a survivor. Members that were
    /// started again since, and those listed in `gone`, are gone for good and not asked.
    pub(crate) fn founder_members<'a>(
        &'a self,
        answers: &[&Report],
        gone: &[String],
    ) -> Vec<&'a MemberStatus> {
        let reborn = |member: &MemberStatus| {
            let node = member.process.split('.').next();
            let lives = |report: &&&Report| report.process.split('.').next() == node;
            let mut lives = answers.iter().filter(lives).peekable();
            lives.peek().is_some() && lives.all(|report| report.process != member.process)
        };
        self.known_members().filter(|member| !reborn(member) && !gone.contains(&member.name)).collect()
    }

    /// Returns the members of a domain without a survivor, as its members know them. The processes of tables
    /// know each other, and so do the cells.
    pub(crate) fn known_members(&self) -> impl Iterator<Item = &MemberStatus> {
        let of_tables = self.witness.iter().filter(|witness| witness.role != Role::Cell);
        of_tables.chain(&self.cell_witness).flat_map(|witness| &witness.members)
    }

    /// Whether so few voters answer that nothing can be written.
    pub(crate) fn is_lost(&self) -> bool {
        self.answering.len() * 2 <= self.voters.len()
    }

    /// Returns the result for programs.
    pub(crate) fn json(&self) -> Value {
        let survivor = self.survivor.as_ref();
        if let Some(witness) = &self.witness {
            return json!({ "quorum": "lost", "voters": [], "survivor": null,
                "founder": self.founder.as_ref().map(|founder| &founder.name),
                "reform": {
                    "from_members": true,
                    "furthest": witness.name,
                    "delivered_through": self.delivered,
                    "members_cut_off": self.absent,
                    "ranges_lost_with": self.ranges_gone,
                } });
        }
        json!({ "quorum": "lost", "voters": self.voters, "changing": self.changing, "answering": self.answering, "gone": self.gone,
            "silent": self.silent, "survivor": survivor.map(|survivor| &survivor.name),
            "reform": survivor.map(|survivor| json!({
                "knows_through": survivor.position,
                "delivered_through": self.delivered,
                "recovered_from_members": self.delivered.saturating_sub(survivor.position),
                "members_cut_off": self.absent,
                "ranges_lost_with": self.ranges_gone,
            })) })
    }

    /// Describes, for display, the loss, whether the lost processes may come back, and what going on would
    /// lose.
    pub(crate) fn explained(&self, named: impl Fn(&str) -> String) -> String {
        let list = |processes: &[String]| processes.iter().map(|it| named(it)).collect::<Vec<_>>().join(", ");
        let Some(survivor) = &self.survivor else {
            if self.witness.is_some() {
                let mut text = String::from(
                    "no voting router answers: nothing can be written. If the routers come back, the domain goes on by itself",
                );
                match &self.founder {
                    Some(founder) => {
                        text += &format!(
                            "\nIf all voting routers are gone for good, `quorate router reform` would go on from the members, with {}:\n{}",
                            founder.name,
                            self.losses()
                        );
                    }
                    None => {
                        text += "\nIf all voting routers are gone for good, start a router that joins this domain: `quorate \
                                 router reform` then goes on from the members";
                    }
                }
                return text;
            }
            return String::from(
                "no voting router answers: nothing can be written. If the routers come back, the domain goes on by itself. If \
                 they are gone for good, the domain is lost: start a new cluster (`quorate down --destroy`, then `quorate up`)",
            );
        };
        let mut text = format!(
            "a majority of the routers is lost: only {} of {} answer ({}), and nothing can be written",
            self.answering.len(),
            self.voters.len(),
            list(&self.answering)
        );
        if self.changing {
            text += "\n  a change of the routers is under way, and needs a majority of the new routers: ";
            text += &list(&self.voters);
        }
        if !self.gone.is_empty() {
            text += &format!(
                "\n  gone for good: {} (their processes have started again without their data)",
                list(&self.gone)
            );
        }
        if !self.silent.is_empty() {
            text += &format!(
                "\n  silent: {} (if they come back, the domain goes on by itself)",
                list(&self.silent)
            );
        }
        if (self.answering.len() + self.silent.len()) * 2 <= self.voters.len() {
            text += "\n  so many routers are gone for good that waiting will not help";
        }
        text += &format!("\n`quorate router reform` would go on from {}:\n{}", survivor.name, self.losses());
        text
    }

    /// Describes, for display, what going on from the survivor would lose.
    pub(crate) fn losses(&self) -> String {
        let Some(survivor) = &self.survivor else { return self.losses_without_survivor() };
        let mut text =
            format!("  {} knows every message up to position {}", survivor.name, survivor.position);
        match self.delivered.checked_sub(survivor.position).filter(|ahead| *ahead > 0) {
            Some(ahead) => {
                text += &format!(
                    "; {ahead} more messages, up to position {}, were delivered to processes that answer, and are recovered from there",
                    self.delivered
                );
            }
            None => text += ", and no process that answers has seen a later message",
        }
        text += "\n  later messages are lost, unless their senders still have them; no process that answers has acknowledged a write \
                 among them";
        text + &self.losses_in_members()
    }

    /// Describes what going on from members alone would lose.
    fn losses_without_survivor(&self) -> String {
        let mut text =
            format!("  members that answer have delivered messages up to position {}", self.delivered);
        text += "\n  messages that were delivered to none of these members are lost; no process that answers has acknowledged a \
                 write among them";
        text += "\n  the outcome of writes under way is unknown: their clients get SQLSTATE 40003, and can send the writes again \
                 under their request ids";
        text += "\n  the domain forgets which made-up request ids have expired: a write that is sent again more than ten minutes \
                 after the first use of such an id may be applied twice";
        text + &self.losses_in_members()
    }

    fn losses_in_members(&self) -> String {
        let mut text = String::new();
        if !self.absent.is_empty() {
            text += &format!("\n  cut off, because they do not answer: {}", self.absent.join(", "));
        }
        for holders in &self.ranges_gone {
            text += &format!(
                "\n  ROWS ARE LOST: none of {} answers, which together held all copies of a range",
                holders.join(", ")
            );
        }
        text
    }
}

/// The losses caused by silent storage processes while a majority of the routers answers.
pub(crate) struct LostRanges {
    /// Silent storage processes that the cluster has given up on and still waits for.
    pub(crate) unreachable: Vec<MemberStatus>,
    /// Names of storage processes that together hold some range and of which none answers.
    pub(crate) ranges: Vec<Vec<String>>,
}

impl LostRanges {
    /// Combines these reports.
    pub(crate) fn of<'a>(reports: impl IntoIterator<Item = &'a Report>) -> LostRanges {
        let reports: Vec<&Report> = reports.into_iter().collect();
        let answers: BTreeSet<&str> = reports.iter().map(|report| report.process.as_str()).collect();
        let routers = reports.iter().filter(|report| report.role == Role::Router);
        let Some(newest) = routers.max_by_key(|report| (report.generation, report.position)) else {
            return LostRanges { unreachable: Vec::new(), ranges: Vec::new() };
        };
        let unreachable = newest.members.iter().filter(|member| {
            member.state == Some(State::Unreachable) && !answers.contains(member.process.as_str())
        });
        LostRanges { unreachable: unreachable.cloned().collect(), ranges: ranges_gone(newest, &answers) }
    }

    /// Returns the result for programs.
    pub(crate) fn json(&self) -> Value {
        json!({ "ranges": "lost", "held_by": self.ranges })
    }

    /// Describes the result for display.
    pub(crate) fn explained(&self) -> String {
        let mut text = String::new();
        for holders in &self.ranges {
            text += &format!(
                "none of {} answers, which together hold all copies of a range\n",
                holders.join(", ")
            );
        }
        text += "the rows of such a range can be neither read nor written until one of its processes answers again. If they are \
                 gone for good, `quorate storage lost NAME` for each unreachable process lets the range go on, with the \
                 rows that a removed process keeps, or empty";
        text
    }
}

/// Returns each run of neighbours on the ring that together holds some range and of which none answers. A run
/// has as many processes as a range has replicas.
fn ranges_gone(survivor: &Report, answers: &BTreeSet<&str>) -> Vec<Vec<String>> {
    let mut ring: Vec<_> =
        survivor.members.iter().filter_map(|member| Some((member.ring?, member))).collect();
    ring.sort_by_key(|(key, _)| *key);
    let holders = survivor.ranges;
    let copies = usize::from(survivor.replicas).min(holders);
    // Former members hold no rows. `holders`, the size of the ring, says whether a holder is missing in the
    // list.
    if copies == 0 || ring.len() < copies && ring.len() == holders {
        return Vec::new();
    }
    let silent = |index: usize| !answers.contains(ring[index % ring.len()].1.process.as_str());
    (0..ring.len())
        .filter(|first| ring.len() >= copies && (*first..*first + copies).all(silent))
        .map(|first| (first..first + copies).map(|at| ring[at % ring.len()].1.name.clone()).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(node: u64, life: &str, routers: &[&str], log: &str) -> Report {
        let members: Vec<Value> =
            [("4.aa", "storage-1", 1), ("5.aa", "storage-2", 2), ("6.aa", "storage-3", 3)]
                .into_iter()
                .map(|(process, name, ring)| {
                    json!({ "process": process, "name": name, "role": "storage",
                "state": "serving", "ring": ring })
                })
                .collect();
        let report = json!({ "name": format!("router-{node}"), "role": "router", "node": node, "incarnation": life,
            "state": "electing", "position": 7, "process": format!("{node}.{life}"), "routers": routers,
            "log": log, "members": members, "ranges": 3, "replicas": 2 });
        serde_json::from_value(report).expect("a report")
    }

    fn storage(node: u64, position: u64) -> Report {
        let report = json!({ "name": format!("storage-{}", node - 3), "role": "storage", "node": node,
            "incarnation": "aa", "state": "serving", "position": position, "process": format!("{node}.aa") });
        serde_json::from_value(report).expect("a report")
    }

    const ALL: [&str; 3] = ["1.aa", "2.aa", "3.aa"];

    #[test]
    fn a_restarted_voter_is_gone_and_a_silent_voter_may_come_back() {
        let quorum = Quorum::of(&[router(1, "aa", &ALL, "2"), router(2, "bb", &[], ""), storage(4, 9)]);
        assert!(quorum.is_lost());
        assert_eq!(
            (quorum.gone.as_slice(), quorum.silent.as_slice()),
            (&["2.aa".into()][..], &["3.aa".into()][..])
        );
        let said = quorum.explained(str::to_owned);
        assert!(
            said.contains("only 1 of 3")
                && said.contains("gone for good: 2.aa")
                && said.contains("silent: 3.aa")
        );
        assert!(said.contains("2 more messages, up to position 9, were delivered"), "{said}");
        assert!(said.contains("none of storage-2, storage-3 answers"), "{said}");
        assert!(!said.contains("waiting will not help"), "{said}");
        assert_eq!(quorum.json()["reform"]["recovered_from_members"], 2);
    }

    #[test]
    fn the_longest_log_continues_the_domain() {
        let five = ["1.aa", "2.aa", "3.aa", "4.bb", "5.bb"];
        let quorum = Quorum::of(&[router(1, "aa", &five, "1"), router(2, "aa", &five, "2")]);
        assert!(quorum.is_lost());
        assert_eq!(quorum.survivor.map(|survivor| survivor.name).as_deref(), Some("router-2"));
    }

    #[test]
    fn during_a_change_the_new_members_vote() {
        let open = |mut report: Report, routers: &[&str]| {
            report.routers_open = Some(routers.iter().map(|&router| router.to_owned()).collect());
            report
        };
        // A fourth router is being added: three of four votes are needed, so two of the former three are not
        // enough.
        let four = ["1.aa", "2.aa", "3.aa", "7.aa"];
        let holds = open(router(1, "aa", &ALL, "3"), &four);
        let quorum = Quorum::of(&[holds.clone(), router(2, "aa", &ALL, "2")]);
        assert!(quorum.is_lost() && quorum.changing);
        let said = quorum.explained(str::to_owned);
        assert!(
            said.contains("only 2 of 4") && said.contains("a change of the routers is under way"),
            "{said}"
        );
        // With the new router, which may itself be the survivor, three routers answer.
        let newcomer = open(router(7, "aa", &ALL, "3"), &four);
        assert!(!Quorum::of(&[holds, router(2, "aa", &ALL, "2"), newcomer.clone()]).is_lost());
        assert_eq!(
            Quorum::of(&[newcomer, router(2, "aa", &ALL, "2")]).survivor.map(|survivor| survivor.node),
            Some(7)
        );
        // A router that is being removed no longer votes, and no generation begins with it.
        let out = open(router(3, "aa", &ALL, "4"), &ALL[..2]);
        let left = open(router(1, "aa", &ALL, "4"), &ALL[..2]);
        let quorum = Quorum::of(&[left, out]);
        assert!(quorum.is_lost());
        assert_eq!(quorum.survivor.map(|survivor| survivor.node), Some(1));
    }

    #[test]
    fn a_range_whose_holders_are_all_silent_is_gone() {
        let mut lead = router(1, "aa", &ALL, "2");
        lead.replicas = 3;
        assert_eq!(LostRanges::of([&lead]).ranges.len(), 3, "all three hold each of three ranges");
        let member = |mut report: Report| {
            (report.role, report.process) = (Role::Storage, "5.aa".to_owned());
            report
        };
        let holder = member(lead.clone());
        assert!(LostRanges::of([&lead, &holder]).ranges.is_empty(), "one answers");
        // The holder's node answers again, but as a new process, which does not have the rows. So the range
        // counts as lost.
        lead.members[1].state = Some(State::Unreachable);
        let reborn = Report { process: "5.bb".to_owned(), ..holder.clone() };
        let gone = LostRanges::of([&lead, &reborn]);
        assert_eq!(gone.unreachable.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["storage-2"]);
        assert!(gone.explained().contains("none of storage-1, storage-2, storage-3 answers"));
        assert!(LostRanges::of([&lead, &holder]).unreachable.is_empty(), "it is heard again");
    }

    #[test]
    fn a_majority_is_enough() {
        let quorum = Quorum::of(&[router(1, "aa", &ALL, "2"), router(2, "aa", &ALL, "2")]);
        assert!(!quorum.is_lost());
        assert!(Quorum::of(&[]).is_lost(), "nobody is no majority");
    }
}

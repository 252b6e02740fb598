//! The dial of a connection: how strong its commands are, and how long they take.
//!
//! Beside fixed levels there are the two techniques of 004 §II.A. *Continuous partial quorums* choose the level of each operation
//! by chance: the strong one with probability p, and else the weak one; p may differ for reads and writes. *Artificial delays*
//! make each read begin later, and each write end later. Both can be had together.

use std::time::Duration;

use quorate_protocol::partial::Level;
use quorate_runtime::chance::Chance;
use serde::{Deserialize, Serialize};

/// One value for reads, and one for writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Pair<T> {
    pub(super) read: T,
    pub(super) write: T,
}

impl<T: Copy> Pair<T> {
    pub(super) fn both(value: T) -> Pair<T> {
        Pair { read: value, write: value }
    }
}

/// A choice between two levels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Choice {
    pub(super) weak: Level,
    pub(super) strong: Level,
    /// The probability of the strong one.
    pub(super) p: f64,
}

impl Choice {
    /// No choice.
    pub(super) fn fixed(level: Level) -> Choice {
        Choice { weak: level, strong: level, p: 1.0 }
    }

    /// The level of an operation for which chance drew `unit`, at least 0 and below 1.
    fn draw(&self, unit: f64) -> Level {
        if unit < self.p { self.strong } else { self.weak }
    }
}

/// How strong commands are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Dial {
    pub(super) levels: Pair<Choice>,
    /// How much later a read begins, and a write ends.
    pub(super) delays: Pair<Duration>,
}

/// How strong one command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strength {
    pub(super) levels: Pair<Level>,
    pub(super) delays: Pair<Duration>,
}

impl Dial {
    /// These levels, without delays.
    pub(super) fn fixed(levels: Pair<Level>) -> Dial {
        let levels = Pair { read: Choice::fixed(levels.read), write: Choice::fixed(levels.write) };
        Dial { levels, delays: Pair::default() }
    }

    /// The strength of the next command. Reads and writes of one command are drawn apart.
    pub(super) fn draw(&self, chance: &mut Chance) -> Strength {
        let mut level = |choice: &Choice| {
            // A level that is certain costs no chance.
            if choice.weak == choice.strong { choice.strong } else { choice.draw(unit(chance.bits())) }
        };
        let levels = Pair { read: level(&self.levels.read), write: level(&self.levels.write) };
        Strength { levels, delays: self.delays }
    }
}

/// From 0 up to 1, which is left out.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The level of this name, in capitals or not.
pub fn level(name: &str) -> Result<Level, String> {
    Level::named(name).ok_or_else(|| {
        let known = Level::ALL.map(Level::name).join(", ");
        format!("there is no level '{name}': {known}")
    })
}

/// The dial behind `QUORATE LEVEL …`: levels that are fixed, and the delays as they were.
pub(super) fn parse_levels(names: &[&str], before: Dial) -> Result<Dial, String> {
    let levels = match names {
        [both] => Pair::both(level(both)?),
        [read, write] => Pair { read: level(read)?, write: level(write)? },
        _ => return Err(String::from("LEVEL takes one level, or one for reads and one for writes")),
    };
    Ok(Dial { delays: before.delays, ..Dial::fixed(levels) })
}

/// The dial behind `QUORATE P …`: probabilities, and perhaps the two levels.
pub(super) fn parse_p(words: &[&str], before: Dial) -> Result<Dial, String> {
    let (numbers, between) = match words {
        [numbers @ .., between, weak, strong] if between.eq_ignore_ascii_case("between") => {
            (numbers, Some((level(weak)?, level(strong)?)))
        }
        numbers => (numbers, None),
    };
    let probability = |text: &str| {
        let p = text.parse().ok().filter(|p| (0.0..=1.0).contains(p));
        p.ok_or_else(|| format!("'{text}' is no probability: 0 to 1, of the strong level"))
    };
    let p = match numbers {
        [both] => Pair::both(probability(both)?),
        [read, write] => Pair { read: probability(read)?, write: probability(write)? },
        _ => {
            return Err(String::from(
                "P takes one probability, or one for reads and one for writes, and BETWEEN weak strong behind them",
            ));
        }
    };
    let choice = |p: f64, before: Choice| {
        let usual = if before.weak == before.strong { USUAL } else { (before.weak, before.strong) };
        let (weak, strong) = between.unwrap_or(usual);
        Choice { weak, strong, p }
    };
    let levels =
        Pair { read: choice(p.read, before.levels.read), write: choice(p.write, before.levels.write) };
    Ok(Dial { levels, delays: before.delays })
}

/// The levels between which P chooses unless it is told others (004 §II.A).
const USUAL: (Level, Level) = (Level::One, Level::Quorum);

/// The dial behind `QUORATE DELAY …`.
pub(super) fn parse_delays(words: &[&str], before: Dial) -> Result<Dial, String> {
    let delays = match words {
        [both] => Pair::both(parse_delay(both)?),
        [read, write] => Pair { read: parse_delay(read)?, write: parse_delay(write)? },
        _ => return Err(String::from("DELAY takes one time, or one before reads and one after writes")),
    };
    Ok(Dial { levels: before.levels, delays })
}

/// A whole number of `us`, `ms` or `s`; of milliseconds without a unit.
fn parse_delay(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let delay = digits.parse::<u64>().ok().and_then(|count| match &text[digits.len()..] {
        "us" => Some(Duration::from_micros(count)),
        "" | "ms" => Some(Duration::from_millis(count)),
        "s" => Some(Duration::from_secs(count)),
        _ => None,
    });
    let delay = delay.filter(|delay| *delay <= DELAY_MAX);
    delay.ok_or_else(|| {
        format!("'{text}' is no delay: 0 to {} s, such as 250us, 20ms or 1s", DELAY_MAX.as_secs())
    })
}

const DELAY_MAX: Duration = Duration::from_secs(60);

impl Dial {
    /// The levels in words, as `QUORATE LEVEL` tells them.
    pub(super) fn levels_spelt(&self) -> String {
        let of = |choice: &Choice| match choice {
            Choice { weak, strong, .. } if weak == strong => strong.name().to_owned(),
            Choice { weak, strong, p } => {
                format!("{} with probability {p}, else {}", strong.name(), weak.name())
            }
        };
        format!("read {} write {}", of(&self.levels.read), of(&self.levels.write))
    }

    /// The delays in words.
    pub(super) fn delays_spelt(&self) -> String {
        format!("before reads {:?}, after writes {:?}", self.delays.read, self.delays.write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Dial {
        Dial::fixed(Pair::both(Level::Quorum))
    }

    #[test]
    fn the_strong_level_comes_as_often_as_p_says() {
        let mut chance = Chance::new();
        let dial = parse_p(&["0.25", "1", "between", "two", "all"], start()).unwrap();
        let mut strong = Pair { read: 0, write: 0 };
        for _ in 0..20_000 {
            let Strength { levels, .. } = dial.draw(&mut chance);
            assert!(matches!(levels.read, Level::Two | Level::All));
            strong.read += u32::from(levels.read == Level::All);
            strong.write += u32::from(levels.write == Level::All);
        }
        // Nine deviations on either side.
        assert!((4_450..5_550).contains(&strong.read), "{strong:?}");
        assert_eq!(strong.write, 20_000);
        let never = parse_p(&["0"], start()).unwrap().draw(&mut chance);
        assert_eq!(never.levels, Pair::both(Level::One));
    }

    #[test]
    fn what_was_dialled_stays_until_it_is_dialled_anew() {
        let dial = parse_delays(&["20ms", "250us"], start()).unwrap();
        assert_eq!(dial.delays, Pair { read: Duration::from_millis(20), write: Duration::from_micros(250) });
        let dial = parse_p(&["0.5", "BETWEEN", "one", "all"], dial).unwrap();
        let dial = parse_p(&["0.75"], dial).unwrap();
        assert_eq!(dial.levels.read, Choice { weak: Level::One, strong: Level::All, p: 0.75 });
        assert_eq!(dial.delays.read, Duration::from_millis(20));
        assert_eq!(
            dial.levels_spelt(),
            "read all with probability 0.75, else one write all with probability 0.75, else one"
        );
        let dial = parse_levels(&["two"], dial).unwrap();
        assert_eq!(dial.levels, Pair::both(Choice::fixed(Level::Two)));
        assert_eq!(dial.delays_spelt(), "before reads 20ms, after writes 250µs");
    }

    #[test]
    fn mistakes_are_named() {
        for (words, text) in [
            (&["1.5"][..], "'1.5' is no probability"),
            (&["nan"], "'nan' is no probability"),
            (&["0.5", "0.5", "0.5"], "P takes one"),
            (&["0.5", "between", "one", "most"], "no level 'most'"),
            (&[], "P takes one"),
        ] {
            assert!(parse_p(words, start()).unwrap_err().contains(text), "{words:?}");
        }
        for text in ["-1", "61s", "5min", "", "ms", "99999999999999999999"] {
            assert!(parse_delays(&[text], start()).unwrap_err().contains("is no delay"), "{text}");
        }
        assert!(parse_delays(&[], start()).unwrap_err().contains("DELAY takes"));
    }
}

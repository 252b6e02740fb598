//! The dial of a connection: the level and the delay of its commands.
//!
//! A connection uses fixed levels, or the two techniques of 004 §II.A. *Continuous partial quorums* choose
//! the level of each operation by chance: the strong level with probability p, otherwise the weak level. The
//! probability may differ for reads and writes. *Artificial delays* postpone the start of each read and the
//! end of each write. The two techniques can be combined.

use std::time::Duration;

use quorate_protocol::strength::{Level, StrengthRefusal};
use quorate_runtime::chance::Chance;
use serde::{Deserialize, Serialize};

/// A value for reads and a value for writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct ReadWrite<T> {
    pub(super) read: T,
    pub(super) write: T,
}

impl<T: Copy> ReadWrite<T> {
    pub(super) fn both(value: T) -> ReadWrite<T> {
        ReadWrite { read: value, write: value }
    }
}

/// A choice between two levels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LevelChoice {
    pub(super) weak: Level,
    pub(super) strong: Level,
    /// Probability of the strong level, from 0 to 1.
    pub(super) p: f64,
}

impl LevelChoice {
    /// Returns the choice that is always `level`.
    pub(super) fn fixed(level: Level) -> LevelChoice {
        LevelChoice { weak: level, strong: level, p: 1.0 }
    }

    /// Returns the level of an operation. `unit` is a random number that is at least 0 and less than 1.
    fn draw(&self, unit: f64) -> Level {
        if unit < self.p { self.strong } else { self.weak }
    }
}

/// The levels and delays of a connection's commands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Dial {
    pub(super) levels: ReadWrite<LevelChoice>,
    /// Artificial delays: of the start of each read, and of the end of each write.
    pub(super) delays: ReadWrite<Duration>,
}

/// The levels and delays of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DrawnLevels {
    pub(super) levels: ReadWrite<Level>,
    pub(super) delays: ReadWrite<Duration>,
}

impl Dial {
    /// Creates a dial with these levels and without delays.
    pub(super) fn fixed(levels: ReadWrite<Level>) -> Dial {
        let levels =
            ReadWrite { read: LevelChoice::fixed(levels.read), write: LevelChoice::fixed(levels.write) };
        Dial { levels, delays: ReadWrite::default() }
    }

    /// Draws the levels of the next command. The levels for reads and for writes are drawn independently.
    pub(super) fn draw(&self, chance: &mut Chance) -> DrawnLevels {
        let mut level = |choice: &LevelChoice| {
            // If both levels are the same, no random number is drawn.
            if choice.weak == choice.strong { choice.strong } else { choice.draw(unit(chance.bits())) }
        };
        let levels = ReadWrite { read: level(&self.levels.read), write: level(&self.levels.write) };
        DrawnLevels { levels, delays: self.delays }
    }
}

/// Maps random bits to a number that is at least 0 and less than 1.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the level of this name, in any case of letters.
pub fn level(name: &str) -> Result<Level, String> {
    name.parse().map_err(|refusal: StrengthRefusal| refusal.to_string())
}

/// Parses one word, which holds for reads and writes, or a word for reads and a word for writes. For any
/// other number of words, fails with the text `usage`.
fn read_write<T: Copy>(
    words: &[&str],
    parse: impl Fn(&str) -> Result<T, String>,
    usage: &str,
) -> Result<ReadWrite<T>, String> {
    match words {
        [both] => parse(both).map(ReadWrite::both),
        [read, write] => Ok(ReadWrite { read: parse(read)?, write: parse(write)? }),
        _ => Err(String::from(usage)),
    }
}

/// Parses the arguments of `QUORATE LEVEL`: fixed levels. The delays of `before` stay.
pub(super) fn parse_levels(names: &[&str], before: Dial) -> Result<Dial, String> {
    let usage = "QUORATE LEVEL takes one level, or one for reads and one for writes";
    let levels = read_write(names, level, usage)?;
    Ok(Dial { delays: before.delays, ..Dial::fixed(levels) })
}

/// Parses the arguments of `QUORATE P`: the probabilities, and optionally the two levels.
pub(super) fn parse_p(words: &[&str], before: Dial) -> Result<Dial, String> {
    let (numbers, between) = match words {
        [numbers @ .., between, weak, strong] if between.eq_ignore_ascii_case("between") => {
            (numbers, Some((level(weak)?, level(strong)?)))
        }
        numbers => (numbers, None),
    };
    let probability = |text: &str| {
        let p = text.parse().ok().filter(|p| (0.0..=1.0).contains(p));
        p.ok_or_else(|| {
            format!(
                "'{text}' is no probability: give the probability of the strong level as a number from 0 to 1"
            )
        })
    };
    let usage = "QUORATE P takes one probability, or one for reads and one for writes, and then optionally BETWEEN weak strong";
    let p = read_write(numbers, probability, usage)?;
    let choice = |p: f64, before: LevelChoice| {
        let usual = if before.weak == before.strong { USUAL } else { (before.weak, before.strong) };
        let (weak, strong) = between.unwrap_or(usual);
        LevelChoice { weak, strong, p }
    };
    let levels =
        ReadWrite { read: choice(p.read, before.levels.read), write: choice(p.write, before.levels.write) };
    Ok(Dial { levels, delays: before.delays })
}

/// The weak and the strong level if `QUORATE P` names no levels (004 §II.A).
const USUAL: (Level, Level) = (Level::One, Level::Quorum);

/// Parses the arguments of `QUORATE DELAY`.
pub(super) fn parse_delays(words: &[&str], before: Dial) -> Result<Dial, String> {
    let usage = "QUORATE DELAY takes one time, or one before reads and one after writes";
    let delays = read_write(words, parse_delay, usage)?;
    Ok(Dial { levels: before.levels, delays })
}

/// Parses a whole number of `us`, `ms` or `s`. A number without a unit counts milliseconds.
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
        format!(
            "'{text}' is no delay: a delay is 0 to {} s, written for example as 250us, 20ms or 1s",
            DELAY_MAX.as_secs()
        )
    })
}

const DELAY_MAX: Duration = Duration::from_secs(60);

impl Dial {
    /// Returns the levels in words, as the answer of `QUORATE LEVEL`.
    pub(super) fn levels_spelt(&self) -> String {
        let of = |choice: &LevelChoice| match choice {
            LevelChoice { weak, strong, .. } if weak == strong => strong.name().to_owned(),
            LevelChoice { weak, strong, p } => {
                format!("{} with probability {p}, else {}", strong.name(), weak.name())
            }
        };
        format!("read {} write {}", of(&self.levels.read), of(&self.levels.write))
    }

    /// Returns the delays in words, as the answer of `QUORATE DELAY`.
    pub(super) fn delays_spelt(&self) -> String {
        format!("before reads {:?}, after writes {:?}", self.delays.read, self.delays.write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Dial {
        Dial::fixed(ReadWrite::both(Level::Quorum))
    }

    #[test]
    fn the_strong_level_is_drawn_with_probability_p() {
        let mut chance = Chance::new();
        let dial = parse_p(&["0.25", "1", "between", "two", "all"], start()).unwrap();
        let mut strong = ReadWrite { read: 0, write: 0 };
        for _ in 0..20_000 {
            let DrawnLevels { levels, .. } = dial.draw(&mut chance);
            assert!(matches!(levels.read, Level::Two | Level::All));
            strong.read += u32::from(levels.read == Level::All);
            strong.write += u32::from(levels.write == Level::All);
        }
        // The bounds are nine standard deviations from the mean on either side.
        assert!((4_450..5_550).contains(&strong.read), "{strong:?}");
        assert_eq!(strong.write, 20_000);
        let never = parse_p(&["0"], start()).unwrap().draw(&mut chance);
        assert_eq!(never.levels, ReadWrite::both(Level::One));
    }

    #[test]
    fn a_dial_keeps_the_settings_that_a_command_does_not_change() {
        let dial = parse_delays(&["20ms", "250us"], start()).unwrap();
        assert_eq!(
            dial.delays,
            ReadWrite { read: Duration::from_millis(20), write: Duration::from_micros(250) }
        );
        let dial = parse_p(&["0.5", "BETWEEN", "one", "all"], dial).unwrap();
        let dial = parse_p(&["0.75"], dial).unwrap();
        assert_eq!(dial.levels.read, LevelChoice { weak: Level::One, strong: Level::All, p: 0.75 });
        assert_eq!(dial.delays.read, Duration::from_millis(20));
        assert_eq!(
            dial.levels_spelt(),
            "read all with probability 0.75, else one write all with probability 0.75, else one"
        );
        let dial = parse_levels(&["two"], dial).unwrap();
        assert_eq!(dial.levels, ReadWrite::both(LevelChoice::fixed(Level::Two)));
        assert_eq!(dial.delays_spelt(), "before reads 20ms, after writes 250µs");
    }

    #[test]
    fn invalid_dial_commands_are_refused_with_the_reason() {
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

//! `quorate check --transactions`: judges which isolation level a recorded history kept.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use indicatif::ProgressBar;
use quorate_command::{Usage, log_stderr, print_line};
use quorate_history::format::Format;
use quorate_history::transactions::{
    IsolationLevel, PositionReplay, RecordedTransaction, RefusedTransaction, TransactionHistory,
    TransactionReport, judge,
};
use serde::Serialize;

use super::input::{HistorySource, Wanted};

/// A history, and the level that it should have kept.
pub(super) struct Question<'a> {
    pub(super) files: &'a [PathBuf],
    pub(super) format: Option<Format>,
    /// The level that the history should have kept.
    pub(super) level: IsolationLevel,
    /// Number of transactions that may be out of order, if they are judged by their positions.
    pub(super) window: Option<usize>,
    pub(super) json: bool,
}

/// The object that `--json` prints. Scripts rely on the object's keys.
#[derive(Serialize)]
struct TransactionSummary<'a> {
    #[serde(flatten)]
    report: &'a TransactionReport,
    asked: IsolationLevel,
    holds: Option<bool>,
    seconds: f64,
}

/// Judges the files and prints the report.
pub(super) fn run(question: &Question<'_>, progress: &ProgressBar) -> anyhow::Result<ExitCode> {
    let begin = Instant::now();
    if question.window.is_some() && question.level < IsolationLevel::Serializable {
        return Err(Usage("--by-position judges serializable and strict only".into()).into());
    }
    let refused = |refused: RefusedTransaction| Usage(refused.to_string());
    let report = match question.window {
        None => {
            let mut history = TransactionHistory::new();
            read(question, progress, |transaction| history.push(&transaction))?;
            judge(&history).map_err(refused)?
        }
        Some(window) => {
            let mut replay = PositionReplay::new(window);
            read(question, progress, |transaction| replay.push(transaction))?;
            replay.finish().map_err(refused)?
        }
    };
    progress.finish_and_clear();
    let seconds = begin.elapsed().as_secs_f64();
    let asked = question.level;
    let holds = (report.transactions > 0).then(|| report.holds(asked));
    if holds.is_none() {
        // A recording that failed must not look like a correct store.
        log_stderr("no transaction took effect, so it is unknown which level the history kept");
    }
    let print_report = || -> io::Result<()> {
        if question.json {
            let summary = TransactionSummary { report: &report, asked, holds, seconds };
            return print_line!("{}", serde_json::to_string(&summary)?);
        }
        write!(io::stdout(), "{report}")
    };
    match print_report() {
        // The exit code still tells the verdict, although nobody reads the report.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        shown => shown?,
    }
    Ok(match holds {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::from(1),
        None => ExitCode::from(3),
    })
}

fn read(
    question: &Question<'_>,
    progress: &ProgressBar,
    mut take: impl FnMut(RecordedTransaction) -> Result<(), RefusedTransaction>,
) -> Result<(), Usage> {
    for path in question.files {
        let Some(mut source) = HistorySource::open(path, question.format, Wanted::Transactions, progress)?
        else {
            log_stderr(format_args!("{}: the file is empty and was skipped", path.display()));
            continue;
        };
        if question.files.len() > 1 && source.format() == Format::Edn {
            return Err(one_file(path));
        }
        source.read_transactions(&mut take)?;
        if let Some(torn) = source.torn() {
            log_stderr(torn);
        }
    }
    Ok(())
}

fn one_file(path: &Path) -> Usage {
    let path = path.display();
    Usage(format!(
        "{path}: give this file alone: a Jepsen history of transactions has the order of its events instead of times, so it cannot be merged with other files"
    ))
}

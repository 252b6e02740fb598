//! `quorate check`: judges how consistent a recorded history is.

use std::io::{self, IsTerminal, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use quorate_history::format::Format;
use quorate_history::format::edn::FailedCas;
use quorate_history::transactions::IsolationLevel;
use quorate_history::{History, Options, Report, Stream, Verdict};
use quorate_lab::judge::{fewest, judge};
use serde::Serialize;

use quorate_command::{Usage, log_stderr, print_line};

mod html;
mod input;
mod table;
mod transactions;

use input::{HistorySource, Wanted};
use transactions::Question;

/// Judges a recorded history: whether it is atomic (linearizable), how many of its operations are
/// inconsistent, by how much time, and which operations prove it.
///
/// With --transactions, judges which isolation level a history of transactions kept.
///
/// Exits with 0 if the history is atomic, or kept the level, 1 if not, 2 if the files cannot be read, and 3
/// if the answer is unknown. A history without operations is unknown.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Recorded histories, which are merged. `-` is standard input.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Format of the files: json, text, edn or watca. By default the first line of each file decides.
    #[arg(long)]
    format: Option<Format>,
    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Writes a page with the timelines of the worst keys to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Largest error of the difference of two recorded times, in nanoseconds, because clocks differ. By
    /// default it follows from the clock errors that the files declare.
    #[arg(long, value_name = "NS")]
    clock_error: Option<u64>,
    /// Takes a failed compare-and-set of a Jepsen history as proof of another value. By default such an
    /// operation proves nothing.
    #[arg(long)]
    failed_cas_observed: bool,
    /// Seconds that the search may take, for keys whose values repeat or that are no registers.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    time_limit: u64,
    /// Judges while reading and forgets settled operations, so that memory does not grow with the files.
    #[arg(long, conflicts_with = "html")]
    stream: bool,
    /// With --stream: nanoseconds for which a replaced value is remembered.
    #[arg(long, value_name = "NS", default_value_t = 10_000_000_000, requires = "stream")]
    horizon: u64,
    /// Judges whether the transactions of the history kept this level. One of read-uncommitted,
    /// read-committed, snapshot, serializable and strict. The report names the strongest level that holds,
    /// and an example of each anomaly.
    #[arg(
        long,
        value_name = "LEVEL",
        conflicts_with_all = ["html", "stream", "clock_error", "failed_cas_observed"]
    )]
    transactions: Option<IsolationLevel>,
    /// With --transactions: applies the transactions in the order of the positions that they carry, and
    /// compares every read. Takes linear time and the memory of the window.
    #[arg(long, requires = "transactions")]
    by_position: bool,
    /// With --by-position: number of transactions that are held to put them in the order of their positions.
    #[arg(long, value_name = "N", default_value_t = 65_536, requires = "by_position")]
    window: usize,
    /// Number of worst keys to show.
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Number of threads. By default one for each core.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// The object that `--json` prints. Scripts rely on the object's keys.
#[derive(Serialize)]
struct CheckSummary {
    operations: u64,
    keys: u64,
    atomic: Verdict,
    inconsistent_operations: Option<u64>,
    proportion: Option<f64>,
    proportion_values: Option<f64>,
    gamma_ns: Option<quorate_history::Score>,
    delta_ns: Option<quorate_history::Score>,
    k: Option<quorate_history::Score>,
    orphan_reads: u64,
    seconds: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(level) = args.transactions {
        let (files, format, json) = (&args.files[..], args.format, args.json);
        let window = args.by_position.then_some(args.window);
        return transactions::run(&Question { files, format, level, window, json }, &progress(args));
    }
    let begin = Instant::now();
    let CheckedHistory { mut report, history, left_out, clock_error } =
        if args.stream { stream(args)? } else { whole(args)? };
    if report.operations == 0 {
        // A recording that failed must not look like a correct store.
        report.verdict = Verdict::Unknown;
        log_stderr(match left_out {
            0 => "the history has no operation, so it is unknown whether it is atomic",
            _ => {
                "all operations failed or are reads without an answer, so it is unknown whether the history is atomic"
            }
        });
    }
    let seconds = begin.elapsed().as_secs_f64();

    if let (Some(path), Some(history)) = (&args.html, &history) {
        let page = html::page(history, &report, args.top);
        // A page that cannot be written is a usage error (exit code 2). Exit code 1 would mean that the
        // history is not atomic.
        std::fs::write(path, page)
            .map_err(|error| Usage(format!("cannot write {}: {error}", path.display())))?;
    }
    let print_report = || -> io::Result<()> {
        if args.json {
            return print_line!("{}", serde_json::to_string(&summary(&report, seconds))?);
        }
        let table = table::table(&report, left_out, clock_error, args.top, seconds);
        io::stdout().write_all(table.as_bytes())?;
        match history.as_ref().and_then(|history| fewest(history, &report)) {
            Some(fewest) => {
                print_line!(
                    "at least {fewest} single operations must be removed for the rest of the history to be atomic"
                )
            }
            None => Ok(()),
        }
    };
    match print_report() {
        // The exit code still tells the verdict, although nobody reads the report.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        shown => shown?,
    }
    Ok(match report.verdict {
        Verdict::Atomic => ExitCode::SUCCESS,
        Verdict::NotAtomic => ExitCode::from(1),
        Verdict::Unknown => ExitCode::from(3),
    })
}

struct CheckedHistory {
    report: Report,
    /// The history, or `None` if it was forgotten while it was judged.
    history: Option<History>,
    left_out: u64,
    clock_error: u64,
}

/// Reads all files and then judges the history.
fn whole(args: &Args) -> anyhow::Result<CheckedHistory> {
    let progress = progress(args);
    let mut history = History::new();
    for path in &args.files {
        let Some(mut source) = HistorySource::open(path, args.format, operations(args), &progress)? else {
            log_stderr(format_args!("{}: the file is empty and was skipped", path.display()));
            continue;
        };
        source.read_into(&mut history)?;
        log_torn_line(&source);
    }
    progress.finish_and_clear();
    let clock_error = args.clock_error.unwrap_or_else(|| history.clock_error());
    let options = Options { clock_error, ..Options::default() };
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let deadline = Instant::now() + Duration::from_secs(args.time_limit);
    let report = judge(&history, &options, threads, Some(deadline));
    let left_out = history.left_out();
    Ok(CheckedHistory { report, history: Some(history), left_out, clock_error })
}

/// Judges while reading. Several files are merged by time.
fn stream(args: &Args) -> anyhow::Result<CheckedHistory> {
    let progress = progress(args);
    let mut sources = Vec::new();
    for path in &args.files {
        let source = HistorySource::open(path, args.format, operations(args), &progress)?;
        if source.is_none() {
            log_stderr(format_args!("{}: the file is empty and was skipped", path.display()));
        }
        sources.extend(source);
    }
    let clock_error = args.clock_error.unwrap_or(0);
    let mut stream = Stream::new(args.horizon, &Options { clock_error, ..Options::default() });
    loop {
        let mut earliest: Option<(i64, usize)> = None;
        for (index, source) in sources.iter_mut().enumerate() {
            if let Some(time) = source.peek()? {
                earliest = Some(earliest.map_or((time, index), |earliest| earliest.min((time, index))));
            }
        }
        let Some((_, index)) = earliest else { break };
        if let Some(operation) = sources[index].next() {
            stream.push(operation).map_err(|impossible| sources[index].impossible(&impossible))?;
        }
    }
    sources.iter().for_each(log_torn_line);
    progress.finish_and_clear();
    let left_out = stream.left_out();
    let (report, past_horizon) = stream.finish();
    if past_horizon > 0 {
        log_stderr(format_args!(
            "{past_horizon} operations came later than the horizon allows; \
             the numbers are exact only with a larger --horizon"
        ));
    }
    Ok(CheckedHistory { report, history: None, left_out, clock_error })
}

fn operations(args: &Args) -> Wanted {
    Wanted::Operations(if args.failed_cas_observed { FailedCas::Observed } else { FailedCas::Ignored })
}

fn log_torn_line(source: &HistorySource) {
    if let Some(torn) = source.torn() {
        log_stderr(torn);
    }
}

fn summary(report: &Report, seconds: f64) -> CheckSummary {
    let measures = report.measures;
    CheckSummary {
        operations: report.operations,
        keys: report.keys,
        atomic: report.verdict,
        inconsistent_operations: measures.map(|measures| measures.inconsistent_operations),
        proportion: report.proportion(),
        proportion_values: report.proportion_values(),
        gamma_ns: measures.map(|measures| measures.gamma),
        delta_ns: measures.map(|measures| measures.delta),
        k: measures.map(|measures| measures.k),
        orphan_reads: report.orphan_reads,
        seconds,
    }
}

/// Returns a progress bar, which is hidden unless standard error is a terminal.
fn progress(args: &Args) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bytes =
        args.files.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|meta| meta.len()).sum();
    let style = "reading {wide_bar} {bytes}/{total_bytes} {eta}";
    let style = ProgressStyle::with_template(style).expect("the template is well-formed");
    ProgressBar::new(bytes).with_style(style)
}

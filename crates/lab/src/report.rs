//! One self-contained page with every figure: the source's claims, the measurements, and the curves.

use std::fmt::Write as _;

use anyhow::Result;
use kuva::{
    plot::{BoxPlot, LinePlot},
    render::{annotations::ReferenceLine, layout::Layout, plots::Plot},
};

use crate::{
    claim::Judged,
    figures::{self, Figure, Form, Panel},
    record::{self, Record},
    source,
};

const STYLE: &str = "\
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { text-align: left; padding: .2rem .8rem; border-bottom: 1px solid #ddd }
td.number { text-align: right; font-variant-numeric: tabular-nums }
.beaten, .matched { color: #186a3b } .differs { color: #a01c1c } .undecided, .missing { color: #7a5c00 }
figure { margin: 1rem 0 } svg { max-width: 100%; height: auto }
small, footer { color: #666 }
code { background: #f4f4f4; padding: .1rem .3rem }";

/// Returns the page for these records.
pub fn page(records: &[Record]) -> Result<String> {
    let mut sections = String::new();
    for figure in figures::ALL {
        for (store, own) in record::by_store(records, figure.id()) {
            section(&mut sections, *figure, &store, &own)?;
        }
    }
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Quorate: figures of the sources</title>\n<style>\n{STYLE}\n</style>\n\
         <h1>Figures of the sources, measured here</h1>\n\
         <p>A claim is <b>beaten</b> if every run is better than the source by a tenth, <b>matched</b> if every run is as good \
         as the source, <b>undecided</b> if only some runs are as good, and it <b>differs</b> if no run is as good or if a run \
         lost or doubled a row. A claim without a measurement is <b>missing</b>.</p>\n\
         {sections}<footer>Quorate {version}, <code>quorate lab report</code></footer>\n</html>\n",
        version = env!("CARGO_PKG_VERSION"),
    ))
}

fn section(out: &mut String, figure: &dyn Figure, store: &str, records: &[Record]) -> Result<()> {
    let values = source::values(figure.id())?;
    let _ = writeln!(
        out,
        "<h2>{}: {}</h2>\n<p>{}: {}</p>\n<table>\n\
         <tr><th>claim of the source</th><th>value there</th><th>median here</th><th>range here</th><th>verdict</th></tr>",
        escape(&record::titled(figure.id(), store)),
        escape(figure.title()),
        escape(figure.section()),
        escape(figure.method())
    );
    for claim in figure.claims() {
        let Judged { verdict, theirs, ours } = claim.judge(&values, records);
        let number = |value: Option<f64>| value.map_or(String::from("–"), |value| format!("{value:.2}"));
        let range = ours.map_or(String::from("–"), |[least, _, most]| format!("{least:.2} – {most:.2}"));
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{range}</td>\
             <td class=\"{verdict}\">{verdict}</td></tr>",
            escape(claim.says),
            number(theirs),
            number(ours.map(|[_, median, _]| median)),
        );
    }
    let _ = writeln!(out, "</table>");
    match records.last() {
        None => {
            let _ = writeln!(
                out,
                "<p><small>Not run yet: <code>quorate lab run {}</code></small></p>",
                figure.id()
            );
        }
        Some(newest) => {
            for panel in figure.panels() {
                let _ = match drawing(panel, newest) {
                    Some(svg) => writeln!(out, "<figure>{svg}</figure>"),
                    None => writeln!(
                        out,
                        "<p><small>{}: nothing to draw, because the newest run has no such \
                         values.</small></p>",
                        escape(panel.up)
                    ),
                };
            }
            let account = newest.account;
            let _ = writeln!(
                out,
                "<p><small>{} {} of <code>{}</code>, version {}, on {} × {}. The drawings show the newest run: {} rows \
                 acknowledged, {} lost, {} doubled.</small></p>",
                records.len(),
                if records.len() == 1 { "run" } else { "runs" },
                escape(&newest.command),
                escape(&newest.version),
                newest.machine.processors,
                escape(&newest.machine.processor),
                account.acknowledged,
                account.lost,
                account.doubled,
            );
        }
    }
    Ok(())
}

/// Draws a part of a record as an SVG element; `None` if it has no points.
fn drawing(panel: &Panel, record: &Record) -> Option<String> {
    let own = |name: &String| {
        let (of, rest) = name.split_once('/').unwrap_or(("", name));
        if panel.of.is_empty() { Some(name.clone()) } else { (of == panel.of).then(|| rest.to_owned()) }
    };
    let series: Vec<Series<'_>> = record
        .series
        .iter()
        .filter_map(|(name, points)| {
            Some(Series { name: own(name)?, points, errors: record.errors.get(name) })
        })
        .collect();
    if series.iter().all(|it| it.points.is_empty()) {
        return None;
    }
    let plots = match panel.form {
        Form::Curves => curves(&series),
        Form::Boxes => boxes(&series),
    };
    let mut layout = Layout::auto_from_plots(&plots)
        .with_width(900.0)
        .with_height(320.0)
        .with_x_label(panel.across)
        .with_y_label(panel.up);
    layout = match panel.form {
        Form::Curves => layout.with_y_axis_min(0.0),
        Form::Boxes => layout.with_log_y(),
    };
    for (at, what) in &record.marks {
        layout = layout.with_reference_line(
            ReferenceLine::vertical(*at).with_color("#888").with_dasharray("4 3").with_label(what.clone()),
        );
    }
    let svg = kuva::render_to_svg(plots, layout);
    // An SVG element within a page must not have an XML prologue.
    svg.find("<svg").map(|begin| svg[begin..].to_owned())
}

/// A series of a record, by its name in the drawing.
struct Series<'a> {
    name: String,
    points: &'a [(f64, f64)],
    errors: Option<&'a Vec<f64>>,
}

fn curves(series: &[Series<'_>]) -> Vec<Plot> {
    const COLORS: [&str; 4] = ["#1f6fb2", "#b25a1f", "#2f8f4e", "#7a4fa3"];
    let curve = |(Series { name, points, errors }, color): (&Series<'_>, &&str)| {
        let mut line = LinePlot::new().with_data(points.iter().copied()).with_color(*color);
        if let Some(errors) = errors {
            line = line.with_y_err(errors.iter().copied());
        }
        if series.len() > 1 { line.with_legend(name.clone()).into() } else { line.into() }
    };
    series.iter().zip(COLORS.iter().cycle()).map(curve).collect()
}

/// Draws a box for each series that has points, and the points, because a box alone hides the outliers.
fn boxes(series: &[Series<'_>]) -> Vec<Plot> {
    let drawn = series.iter().filter(|it| !it.points.is_empty()).fold(BoxPlot::new(), |plot, it| {
        plot.with_group(it.name.clone(), it.points.iter().map(|point| point.1))
    });
    vec![drawn.with_color("#9fc3e3").with_strip(0.0).into()]
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_figure_and_nothing_to_fetch() {
        let page = page(&[Record::sample()]).unwrap();
        for figure in figures::ALL {
            assert!(page.contains(figure.id()) && page.contains("<svg"), "{}", figure.id());
        }
        assert!(page.contains("a &lt;processor&gt;") && page.contains("lead router killed"));
        assert!(!page.contains("src=") && !page.contains("<link") && !page.contains("@import"));
        let empty = super::page(&[]).unwrap();
        assert!(empty.contains("Not run yet") && empty.contains(">missing</td>"));
    }

    #[test]
    fn boxes_and_errors_are_drawn_and_may_be_missing() {
        let series = [
            ("levels/  1 latest", vec![(1.0, 0.004), (1.0, 7.0), (1.0, 9.0), (1.0, 30.0), (1.0, 100.0)]),
            ("levels/  4 latest", Vec::new()),
        ];
        let severity = Record {
            figure: String::from("004/figure-9"),
            series: series.map(|(name, points)| (name.to_owned(), points)).into(),
            marks: Vec::new(),
            ..Record::sample()
        };
        let proportion = Record {
            figure: String::from("004/figure-3"),
            series: [(String::from("proportion/latest"), vec![(0.0, 0.2), (1.0, 0.0)])].into(),
            errors: [(String::from("proportion/latest"), vec![0.01, 0.0])].into(),
            ..severity.clone()
        };
        let page = page(&[severity, proportion]).unwrap();
        assert!(page.contains("1 latest") && !page.contains("4 latest"));
        assert_eq!((page.matches("<svg").count(), page.matches("nothing to draw").count()), (2, 4));
    }
}

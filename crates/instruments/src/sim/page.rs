//! The page of `quorate sim graphs`: drawings of the undirected graphs of five routers, with the clients'
//! waiting times.

use std::{collections::BTreeMap, f64::consts::TAU, fmt::Write as _, time::Duration};

use quorate_sim::graphs::{Case, Family, Finding, Graph, PROMISED};

use super::family::FamilySummary;

/// Returns the page. It loads nothing from elsewhere.
pub(super) fn render(findings: &[(&Case, &Finding)], kinds: &[FamilySummary]) -> String {
    let mut shapes: BTreeMap<usize, Vec<&Finding>> = BTreeMap::new();
    let plain = findings.iter().filter(|(case, _)| case.family == Family::Undirected);
    for (case, finding) in plain {
        shapes.entry(case.shape).or_default().push(finding);
    }
    let figures: Vec<String> = shapes.values().filter_map(|findings| figure(findings)).collect();
    let mut rows = String::new();
    for FamilySummary { family, graphs, graphs_promised, cases, promised, longest, healed, failed } in kinds {
        let _ = writeln!(
            rows,
            "<tr><td>{}</td><td>{graphs}</td><td>{graphs_promised}</td><td>{cases}</td><td>{promised}</td><td>{}</td><td>{}</td><td>{failed}</td></tr>",
            family.name(),
            seconds(*longest),
            seconds(*healed)
        );
    }
    format!(
        r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Partial partitions of routers</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 68rem; margin: 2rem auto; padding: 0 1rem }}
p, li {{ max-width: 44rem }}
table {{ border-collapse: collapse }}
th, td {{ text-align: right; padding: .2rem .8rem; border-bottom: 1px solid #ddd }}
th:first-child, td:first-child {{ text-align: left }}
.shapes {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 1rem; margin: 1.5rem 0 }}
figure {{ margin: 0; padding: .6rem; border: 1px solid #ddd; border-radius: .4rem }}
figure.waits {{ background: #f6f6f6 }}
figure svg {{ display: block; width: 7.5rem; margin: 0 auto .4rem }}
figcaption {{ font-size: .82rem; line-height: 1.35 }}
figcaption b {{ font-size: .95rem }}
line {{ stroke: #888; stroke-width: 1.6 }}
circle {{ stroke: #222; stroke-width: 1.6; fill: #fff }}
circle.connected {{ fill: #1f6fb2; stroke: #1f6fb2 }}
footer {{ color: #666; font-size: .85rem; margin-top: 2rem }}
</style>
<h1>Partial partitions of routers</h1>
<p>Five routers agree on one order. Each drawing is a network in which some of them cannot talk: a line joins two routers that
hear each other. A router is filled if it talks with a majority, itself counted.</p>
<p><b>The promise.</b> While there is such a router, writes of clients that can talk with it, directly or through other
routers, are acknowledged again within {promise} after the network took its shape, and the lead moves at most once. Where
there is none, writes wait; nothing is lost or falsely acknowledged, and they go on within {promise} after the cut has
healed.</p>
<p><b>The times</b>, the median and the longest, say when the first write was acknowledged that was begun as the network took its
shape, in simulated networks without other delays. Each graph was tried with every router as the leader and in two numberings, with one
client that is linked to all routers and one for each router alone. A client notices that the path to a router is cut after
0.45 to 1 s, so most of the longest times are the client's own.</p>
<div class="shapes">
{figures}</div>
<h2>All graphs</h2>
<table>
<tr><th>kind</th><th>graphs</th><th>promised</th><th>cases</th><th>promised</th><th>longest wait</th><th>after healing</th><th>failed</th></tr>
{rows}</table>
<p>Directed graphs have links that pass one way only. Graphs on five routers are tried up to the names of the routers.
<i>Promised</i> counts the graphs, and the cases, in which some router talks with a majority. A case is a graph, or two graphs one
after the other, with a leader and a numbering.</p>
<footer>Quorate {version}, <code>quorate sim graphs --page FILE</code></footer>
</html>
"#,
        promise = seconds(PROMISED),
        figures = figures.concat(),
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// Returns the figure of one graph, from its findings.
fn figure(findings: &[&Finding]) -> Option<String> {
    let first = findings.first()?.phases.first()?;
    let all = first.graph.routers();
    let first_phases = || findings.iter().filter_map(|finding| finding.phases.first());
    let waits = |of_all: bool| {
        let served = first_phases().flat_map(|phase| phase.served.iter().enumerate());
        let chosen = served.filter(move |(client, served)| (*client == all) == of_all && served.promised);
        let mut waits: Vec<Duration> = chosen.filter_map(|(_, served)| served.after).collect();
        waits.sort_unstable();
        waits
    };
    let cases_with_lead_change = first_phases().filter(|phase| phase.reigns > 0).count();
    let failed = findings.iter().filter(|finding| finding.failure.is_some()).count();
    let healed = findings.iter().filter_map(|finding| finding.phases.last()?.longest()).max();
    let mut caption = String::new();
    if first.promised {
        for (routers, waits) in [("all routers", waits(true)), ("one router", waits(false))] {
            if let (Some(longest), Some(median)) = (waits.last(), waits.get(waits.len() / 2)) {
                let _ = write!(
                    caption,
                    "client of {routers}:<br><b>{}</b>, at most <b>{}</b><br>",
                    seconds(*median),
                    seconds(*longest)
                );
            }
        }
        let _ = write!(caption, "lead moved in {cases_with_lead_change} of {} cases", findings.len());
    } else {
        let _ = write!(
            caption,
            "no majority: writes wait<br>after healing: at most <b>{}</b>",
            seconds(healed.unwrap_or_default())
        );
    }
    if failed > 0 {
        let _ = write!(caption, "<br><b>{failed} failed</b>");
    }
    let class = if first.promised { "goes" } else { "waits" };
    Some(format!(
        "<figure class=\"{class}\">{}<figcaption>{caption}</figcaption></figure>\n",
        drawing(plainest(first.graph))
    ))
}

/// Renames the routers so that few lines cross and most lines join neighbours.
fn plainest(graph: Graph) -> Graph {
    let count = graph.routers();
    let are_far_apart =
        |one: usize, other: usize| !matches!(one.abs_diff(other), 1) && one.abs_diff(other) != count - 1;
    let cost = |graph: &Graph| {
        let edges: Vec<(usize, usize)> = graph.edges().collect();
        let crossings = edges.iter().flat_map(|one| edges.iter().map(move |other| (one, other)));
        let crossings = crossings.filter(|((a, b), (c, d))| a < c && c < b && b < d).count();
        10 * crossings + edges.iter().filter(|(one, other)| are_far_apart(*one, *other)).count()
    };
    graph.renamings().min_by_key(cost).unwrap_or(graph)
}

fn drawing(graph: Graph) -> String {
    let count = graph.routers();
    let place = |router: usize| {
        let angle = TAU * router as f64 / count as f64 - TAU / 4.0;
        (50.0 + 38.0 * angle.cos(), 52.0 + 38.0 * angle.sin())
    };
    let connected = graph.connected(graph.all());
    let mut svg = String::from("<svg viewBox=\"0 0 100 100\" role=\"img\" aria-label=\"the graph\">");
    for (one, other) in graph.edges() {
        let ((x1, y1), (x2, y2)) = (place(one), place(other));
        let _ = write!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
    }
    for router in 0..count {
        let (x, y) = place(router);
        let class = if connected & 1 << router != 0 { " class=\"connected\"" } else { "" };
        let _ = write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"{class}/>");
    }
    svg.push_str("</svg>");
    svg
}

fn seconds(span: Duration) -> String {
    if span < Duration::from_millis(10) {
        return format!("{:.1} ms", span.as_secs_f64() * 1e3);
    }
    format!("{:.2} s", span.as_secs_f64())
}

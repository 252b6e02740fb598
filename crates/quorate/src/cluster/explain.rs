//! The ranges and destinations of an operation, for EXPLAIN.

use quorate_protocol::rubberband::Config;
use quorate_roles::tables::gateway;
use quorate_table::operation::Operation;

/// Returns a line for each fact that is known before the operation is sent: the operation's ranges and
/// destinations.
pub(super) fn lines(config: &Config, operation: &Operation, request: &gateway::TableRequest) -> Vec<String> {
    let mut lines = Vec::new();
    let total = config.segments().len();
    let touched: usize = request.ranges.iter().map(|range| config.count_segments(*range)).sum();
    lines.push(format!("Ranges: {} of {total} ring segments", touched.min(total)));
    let assigned = if operation.is_write() {
        lines.push(String::from("Executed by every replica, answered once per range"));
        if request.fallible && touched > 1 {
            lines.push(String::from(
                "The write can fail and spans ranges: replicas exchange verdicts before the write takes effect",
            ));
        }
        config.assign_write(&request.ranges, 0)
    } else {
        config.assign_read(&request.ranges, 0)
    };
    match assigned {
        Ok(assigned) => {
            for assignment in assigned {
                let name = config.members.get(&assignment.process).map_or("?", |info| info.name.as_str());
                let count = assignment.held.len();
                lines
                    .push(format!("Destination: {name}, {count} range{}", if count == 1 { "" } else { "s" }));
            }
        }
        Err(range) => lines.push(format!("No replica for the range from {:#018x}", range.low)),
    }
    lines
}

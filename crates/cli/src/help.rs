//! The help of `quorate` without a command: all commands, in groups.

use std::fmt::Write as _;

use clap::Command;

/// The groups of commands, in the order of the help.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run a cluster", &["up", "down", "status", "kill", "restart", "node"]),
    ("Use a cluster", &["sql", "service", "group"]),
    ("Operate a cluster", &["router", "storage", "table", "backup", "restore"]),
    ("Know what clients get", &["watch", "check", "tune"]),
    ("Simulate and measure", &["sim", "bench", "lab"]),
    ("Set up this program", &["completions", "man", "help"]),
];

/// Sets the help of `command` to a help that lists the commands in groups.
pub(crate) fn group_commands(mut command: Command) -> Command {
    // Adds the command `help`.
    command.build();
    let about = |name: &str| {
        let found = command.find_subcommand(name).and_then(Command::get_about);
        found.map(ToString::to_string).unwrap_or_default()
    };
    let mut groups = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(groups, "{title}:");
        for name in names {
            let _ = writeln!(groups, "  {name:<12} {}", about(name));
        }
        groups.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let mut command = crate::Cli::command();
        command.build();
        let mut names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        names.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, names);
    }
}

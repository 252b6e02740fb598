//! A program's commands and flags as data.
//!
//! `quorate` and `quorate-instruments` are two programs, which share one command line. The instruments
//! describe their commands to `quorate`, which writes completions and manual pages for both.

use clap::{Arg, ArgAction, Command, builder::PossibleValuesParser};
use serde::{Deserialize, Serialize};

/// A command, its flags and its subcommands.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct CommandDescription {
    name: String,
    about: String,
    flags: Vec<FlagDescription>,
    commands: Vec<CommandDescription>,
}

/// A flag, or a positional argument, which has neither a long nor a short name.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct FlagDescription {
    id: String,
    long: Option<String>,
    short: Option<char>,
    help: String,
    /// The name of the flag's value in the help; `None` if the flag takes no value.
    value: Option<String>,
    /// All values that the flag accepts; empty if they cannot be listed.
    values: Vec<String>,
    is_required: bool,
    is_repeated: bool,
}

impl CommandDescription {
    /// Describes a command. Hidden flags and commands are left out.
    pub fn of(command: &Command) -> CommandDescription {
        let is_shown =
            |flag: &&Arg| !flag.is_hide_set() && !["help", "version"].contains(&flag.get_id().as_str());
        let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
        CommandDescription {
            name: command.get_name().to_owned(),
            about: text(command.get_long_about().or(command.get_about())),
            flags: command.get_arguments().filter(is_shown).map(FlagDescription::of).collect(),
            commands: commands.map(CommandDescription::of).collect(),
        }
    }

    /// Returns the subcommands.
    pub fn into_commands(self) -> Vec<CommandDescription> {
        self.commands
    }

    /// Makes a command with the same help as the described command. The command takes the values of its flags
    /// as texts.
    pub fn into_command(self) -> Command {
        Command::new(self.name)
            .about(self.about)
            .args(self.flags.into_iter().map(FlagDescription::into_arg))
            .subcommands(self.commands.into_iter().map(CommandDescription::into_command))
    }
}

impl FlagDescription {
    fn of(flag: &Arg) -> FlagDescription {
        let takes_value = flag.get_action().takes_values();
        let name = flag.get_value_names().and_then(<[_]>::first).map(ToString::to_string);
        let values = flag.get_possible_values().into_iter();
        FlagDescription {
            id: flag.get_id().to_string(),
            long: flag.get_long().map(str::to_owned),
            short: flag.get_short(),
            help: text(flag.get_long_help().or(flag.get_help())),
            value: takes_value.then(|| name.unwrap_or_else(|| flag.get_id().as_str().to_uppercase())),
            values: values.filter(|_| takes_value).map(|value| value.get_name().to_owned()).collect(),
            is_required: flag.is_required_set(),
            is_repeated: matches!(flag.get_action(), ArgAction::Append | ArgAction::Count),
        }
    }

    fn into_arg(self) -> Arg {
        let action = match (&self.value, self.is_repeated) {
            (Some(_), false) => ArgAction::Set,
            (Some(_), true) => ArgAction::Append,
            (None, false) => ArgAction::SetTrue,
            (None, true) => ArgAction::Count,
        };
        let mut arg = Arg::new(self.id).help(self.help).required(self.is_required).action(action);
        if let Some(long) = self.long {
            arg = arg.long(long);
        }
        if let Some(short) = self.short {
            arg = arg.short(short);
        }
        if let Some(value) = self.value {
            arg = arg.value_name(value);
        }
        if self.values.is_empty() { arg } else { arg.value_parser(PossibleValuesParser::new(self.values)) }
    }
}

fn text(styled: Option<&clap::builder::StyledStr>) -> String {
    styled.map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_made_from_a_description_is_described_alike() {
        let command = Command::new("program").about("Does things.").subcommand(
            Command::new("paint")
                .about("Paints a wall.")
                .arg(Arg::new("wall").required(true).help("The wall."))
                .arg(Arg::new("colour").long("colour").short('c').value_parser(["red", "blue"]))
                .arg(Arg::new("layers").long("layers").value_name("N").action(ArgAction::Append))
                .arg(Arg::new("fast").long("fast").action(ArgAction::SetTrue))
                .arg(Arg::new("secret").long("secret").hide(true)),
        );
        let description = CommandDescription::of(&command);
        let [paint] = &description.commands[..] else { panic!("{description:?}") };
        let flags: Vec<&str> = paint.flags.iter().map(|flag| flag.id.as_str()).collect();
        assert_eq!(flags, ["wall", "colour", "layers", "fast"]);
        assert_eq!(paint.flags[1].values, ["red", "blue"]);
        let again = CommandDescription::of(&CommandDescription::of(&command).into_command());
        assert_eq!(again, description);
    }
}

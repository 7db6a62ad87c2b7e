//! Manual pages: clap_mangen's sections and additional ones.

use std::io;
use std::path::Path;

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;
use gdr_process::WholeFile;

use crate::cli;
use crate::environment::{Entry, FILES, VARIABLES};
use crate::multicall::Tool;

/// Writes the pages of gdr, of its commands and of GDRCopy's tools into a directory.
pub(crate) fn write_to(directory: &Path) -> io::Result<()> {
    let mut gdr = cli::command();
    gdr.build();
    write(&gdr, directory)?;
    for tool in Tool::all() {
        let mut command = tool.command();
        command.build();
        write(&command, directory)?;
    }
    Ok(())
}

fn write(command: &Command, directory: &Path) -> io::Result<()> {
    let name = page(command);
    WholeFile::write(&directory.join(format!("{name}.1")), &render(command)?)?;
    command
        .get_subcommands()
        .try_for_each(|sub| write(sub, directory))
}

/// Returns the page's name: `gdr-topo-why`.
fn page(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    name.replace(' ', "-")
}

fn render(command: &Command) -> io::Result<Vec<u8>> {
    let name = page(command);
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .source(format!("gdr {}", env!("CARGO_PKG_VERSION")))
        .manual("gdr");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    let about = command.get_about().map(ToString::to_string);
    section(
        &mut text,
        "NAME",
        &escape(&format!("{name} - {}", about.unwrap_or_default())),
    );
    section(&mut text, "SYNOPSIS", &synopsis(command));
    man.render_description_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    man.render_options_section(&mut text)?;
    let help = command.get_after_help().map(ToString::to_string);
    for part in help.unwrap_or_default().split("\n\n") {
        match part.split_once(":\n") {
            // Verbatim, because it contains commands and a table.
            Some((title, lines)) => section(
                &mut text,
                &title.to_uppercase(),
                &format!(".nf\n{}\n.fi", escape(lines)),
            ),
            None => text.extend(format!(".PP\n{}\n", escape(part)).bytes()),
        }
    }
    section(&mut text, "ENVIRONMENT", &entries(&VARIABLES));
    section(&mut text, "FILES", &entries(&FILES));
    section(&mut text, "SEE ALSO", &see_also(command, &name));
    Ok(text)
}

fn section(text: &mut Vec<u8>, title: &str, body: &str) {
    text.extend(format!(".SH \"{title}\"\n{body}\n").bytes());
}

/// Returns every option with its value, then the positional arguments.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut words = vec![format!("\\fB{}\\fR", escape(name))];
    let arguments = || {
        command
            .get_arguments()
            .filter(|argument| !argument.is_hide_set())
    };
    words.extend(arguments().filter(|a| !a.is_positional()).map(option));
    if command.has_subcommands() {
        words.push("\\fICOMMAND\\fR".to_owned());
    }
    words.extend(arguments().filter(|a| a.is_positional()).map(|argument| {
        let value = value(argument).unwrap_or_else(|| argument.get_id().to_string());
        let value = format!("\\fI{}\\fR", escape(&value));
        optional(argument, value)
    }));
    words.join(" ")
}

fn option(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let names: Vec<_> = [short, long].into_iter().flatten().collect();
    let mut text = format!(
        "\\fB{}\\fR",
        escape(&names.join("\u{0}")).replace('\u{0}', "\\fR|\\fB")
    );
    if let Some(value) = value(argument) {
        text += &format!(" \\fI{}\\fR", escape(&value));
    }
    if matches!(argument.get_action(), ArgAction::Count) {
        text += "...";
    }
    optional(argument, text)
}

fn optional(argument: &Arg, text: String) -> String {
    let many = matches!(argument.get_action(), ArgAction::Append);
    let text = if many { text + "..." } else { text };
    match argument.is_required_set() {
        true => text,
        false => format!("[{text}]"),
    }
}

/// Returns the placeholder of an argument's value.
fn value(argument: &Arg) -> Option<String> {
    let takes = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    let names = argument.get_value_names().filter(|_| takes)?;
    Some(names.join(" "))
}

fn entries(entries: &[Entry]) -> String {
    let lines = entries
        .iter()
        .map(|(name, meaning)| format!(".TP\n\\fB{}\\fR\n{}", escape(name), escape(meaning)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the pages of the parent command and the subcommands; for GDRCopy's tools, gdr's page.
fn see_also(command: &Command, name: &str) -> String {
    let below = command.get_subcommands().map(page);
    let above = match (Tool::named(name), name.rsplit_once('-')) {
        (Some(tool), _) => vec!["gdr".to_owned(), format!("gdr-{}", tool.subcommand.name)],
        (None, Some((above, _))) => vec![above.to_owned()],
        (None, None) => Vec::new(),
    };
    let pages = above.into_iter().chain(below);
    let pages = pages.map(|page| format!("\\fB{}\\fR(1)", escape(&page)));
    pages.collect::<Vec<_>>().join(", ")
}

/// Escapes text for roff, so that hyphens can be copied and no line is taken as a request.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text
        .lines()
        .map(|line| match line.starts_with(['.', '\'']) {
            true => format!("\\&{line}"),
            false => line.to_owned(),
        });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    fn page_of(command: &Command) -> String {
        String::from_utf8(render(command).unwrap()).unwrap()
    }

    #[test]
    fn a_page_has_the_sections_of_a_manual() {
        let mut gdr = cli::command();
        gdr.build();
        let text = page_of(gdr.find_subcommand("copybw").unwrap());
        let sections = [
            "NAME",
            "SYNOPSIS",
            "EXAMPLES",
            "EXIT STATUS",
            "ENVIRONMENT",
            "FILES",
            "SEE ALSO",
        ];
        for section in sections {
            assert_eq!(
                text.matches(&format!(".SH \"{section}\"\n")).count(),
                1,
                "{section}"
            );
        }
        assert_contains!(text, "[\\fB\\-s\\fR|\\fB\\-\\-size\\fR \\fISIZE\\fR]");
        let version = format!("gdr {}", env!("CARGO_PKG_VERSION"));
        assert!(
            text.lines()
                .any(|line| line.starts_with(".TH") && line.contains(&version))
        );
        assert_contains!(text, "EXAMPLES\"\n.nf\n  gdr copybw ");
        assert!(!text.contains(".SH EXTRA"), "{text}");
    }

    #[test]
    fn a_line_of_text_is_no_request() {
        assert_eq!(escape(".so x\n'y -a\\"), "\\&.so x\n\\&'y \\-a\\e");
    }
}

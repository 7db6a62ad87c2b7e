//! `cargo xtask picture`: the picture of a terminal in README.md, drawn from what gdr prints.

use std::fs;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use gdr_render::svg::{Element, Number};

use crate::results::Outcome;
use crate::workspace::{self, root};

/// The picture.
const FILE: &str = "docs/terminal.svg";

/// A command on the screen.
struct Shown {
    command: &'static str,
    /// How many of its lines.
    most: usize,
    /// The beginnings of lines that are left out.
    without: &'static [&'static str],
}

const SCREEN: [Shown; 2] = [
    Shown {
        command: "gdr doctor --example",
        most: 24,
        without: &[],
    },
    Shown {
        command: "gdr loopback --simulate --provider soft -i 2",
        most: 30,
        // Details that are there or not by what is measured, and rates of no hardware.
        without: &[
            "provider ",
            "reached ",
            "          ",
            "integrity ",
            "moving ",
            "RDMA ",
        ],
    },
];

/// The size of a character and of a line, and the margin, in SVG's units.
const CHARACTER: f64 = 8.4;
const LINE: f64 = 19.0;
const MARGIN: f64 = 16.0;

/// The columns of gdr's output.
const COLUMNS: usize = 100;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only compare the picture with what gdr prints. Numbers may differ, which are measured.
    #[arg(long)]
    check: bool,
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    if options.check {
        return Ok(match check()? {
            Outcome::Failed => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        });
    }
    let path = root().join(FILE);
    fs::write(&path, draw(&screen()?)).with_context(|| path.display().to_string())?;
    println!("{}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Runs the step of `cargo xtask test`.
pub fn check() -> anyhow::Result<Outcome> {
    let drawn = fs::read_to_string(root().join(FILE)).with_context(|| FILE.to_owned())?;
    let now = draw(&screen()?);
    for (old, new) in without_numbers(&drawn)
        .lines()
        .zip(without_numbers(&now).lines())
    {
        if old != new {
            println!(
                "{FILE} has\n  {old}\nand gdr prints\n  {new}\n`cargo xtask picture` draws it again"
            );
            return Ok(Outcome::Failed);
        }
    }
    if drawn.lines().count() != now.lines().count() {
        bail!(
            "{FILE} has another number of lines than gdr prints: `cargo xtask picture` draws it again"
        );
    }
    Ok(Outcome::Passed)
}

/// Returns a text with each number, which may be measured, as one zero.
fn without_numbers(text: &str) -> String {
    let mut result = String::new();
    let mut in_number = false;
    for character in text.chars() {
        let is_part = character.is_ascii_digit() || (in_number && character == '.');
        if is_part && !in_number {
            result.push('0');
        }
        if !is_part {
            result.push(character);
        }
        in_number = is_part;
    }
    result
}

/// Returns the lines of the screen: each command, and the first lines that it prints.
fn screen() -> anyhow::Result<Vec<String>> {
    let gdr = workspace::build("dev", &["gdr-cli"])?.join("gdr");
    let mut lines = Vec::new();
    for Shown {
        command,
        most,
        without,
    } in SCREEN
    {
        lines.push(format!("\u{1b}[1m$ {command}\u{1b}[0m"));
        let output = Command::new(&gdr)
            .args(command.split(' ').skip(1))
            .env_clear()
            .env("CLICOLOR_FORCE", "1")
            .env("COLUMNS", COLUMNS.to_string())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| gdr.display().to_string())?;
        let text = String::from_utf8(output.stdout)?;
        let shown = |line: &&str| !without.iter().any(|beginning| line.starts_with(beginning));
        let text: Vec<_> = text.lines().filter(shown).collect();
        lines.extend(text.iter().take(most).map(|line| (*line).to_owned()));
        if text.len() > most {
            lines.push("     ...".to_owned());
        }
        lines.push(String::new());
    }
    Ok(lines)
}

/// Part of a line with one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Span {
    text: String,
    look: Look,
}

/// How characters look, as a terminal's escapes set it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Look {
    is_bold: bool,
    is_dim: bool,
    /// One of the eight colors of terminals.
    color: Option<u8>,
}

impl Look {
    /// Applies the number of an escape (ECMA-48, SGR).
    fn apply(&mut self, number: u8) {
        match number {
            0 => *self = Self::default(),
            1 => self.is_bold = true,
            2 => self.is_dim = true,
            22 => (self.is_bold, self.is_dim) = (false, false),
            30..=37 => self.color = Some(number - 30),
            39 => self.color = None,
            _ => {}
        }
    }

    /// Gives a text this look.
    fn paint(self, text: Element) -> Element {
        let color = match self.color {
            Some(1) => "#ff7b72",
            Some(2) => "#7ee787",
            Some(3) => "#f2cc60",
            Some(4..=6) => "#79c0ff",
            _ if self.is_dim => "#8b949e",
            _ => "#e6edf3",
        };
        let text = text.with("fill", color);
        match self.is_bold {
            true => text.with("font-weight", "bold"),
            false => text,
        }
    }
}

/// Reads the escapes of a line.
fn spans(line: &str) -> Vec<Span> {
    let mut spans = vec![Span::default()];
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        let Some((numbers, after)) = after.split_once('m') else {
            break;
        };
        let Some(last) = spans.last_mut() else { break };
        last.text += before;
        let mut look = last.look;
        for number in numbers.split(';') {
            look.apply(number.parse().unwrap_or(0));
        }
        if last.look != look {
            spans.push(Span {
                text: String::new(),
                look,
            });
        }
        rest = after;
    }
    if let Some(last) = spans.last_mut() {
        last.text += rest;
    }
    spans.retain(|span| !span.text.is_empty());
    spans
}

/// Draws the lines.
fn draw(lines: &[String]) -> String {
    let size = (
        COLUMNS as f64 * CHARACTER + 2.0 * MARGIN,
        lines.len() as f64 * LINE + 2.0 * MARGIN,
    );
    let background = Element::rect((0.0, 0.0), size).with("rx", 8);
    let mut svg = Element::new("title")
        .words("gdr doctor and gdr loopback in a terminal")
        .to_string();
    svg += &format!("\n{}\n", background.with("fill", "#0d1117"));
    for (number, line) in lines.iter().enumerate() {
        let y = MARGIN + (number + 1) as f64 * LINE - 5.0;
        let mut column = 0;
        for Span { text, look } in spans(line) {
            let length = text.chars().count();
            let x = MARGIN + column as f64 * CHARACTER;
            column += length;
            if text.trim().is_empty() {
                continue;
            }
            // The length is given, because fonts differ in the width of a character.
            let shown = Element::text((x, y), &text)
                .with("textLength", Number(length as f64 * CHARACTER))
                .with("xml:space", "preserve");
            look.paint(shown).put(&mut svg);
        }
    }
    let font = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace";
    let root = Element::root(size).with("font-family", font);
    format!("{}\n", root.with("font-size", 14).lines(&svg))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_become_spans() {
        let line = "\u{1b}[31;1m[x]\u{1b}[0m  GPU3 \u{1b}[2m(acs.path)\u{1b}[0m";
        let red = Look {
            is_bold: true,
            color: Some(1),
            ..Look::default()
        };
        let dim = Look {
            is_dim: true,
            ..Look::default()
        };
        let span = |text: &str, look| Span {
            text: text.to_owned(),
            look,
        };
        let expected = [
            span("[x]", red),
            span("  GPU3 ", Look::default()),
            span("(acs.path)", dim),
        ];
        assert_eq!(spans(line), expected);
        let drawn = draw(&["a < b".to_owned()]);
        assert!(drawn.contains(">a &lt; b</text>"), "{drawn}");
    }

    #[test]
    fn pictures_that_differ_in_numbers_only_are_the_same() {
        let old = "in 656.8 us <text x=\"1.5\">";
        assert_eq!(
            without_numbers(old),
            without_numbers("in 1532.0 us <text x=\"12.25\">")
        );
        assert_ne!(
            without_numbers(old),
            without_numbers("in 656.8 ms <text x=\"1.5\">")
        );
    }
}

//! What stands on a terminal when a command has ended: its lines, and nothing of its bar.

use std::process::Command;

use super::*;

/// What `gdr` sends to a terminal of so many columns; none where there is no `script`.
fn on_terminal(columns: u16, line: &str) -> Option<String> {
    let command = format!(
        "stty cols {columns} rows 24; exec '{}' {line}",
        cargo_bin!("gdr").display()
    );
    let output = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env_remove("GDR_BACKEND")
        .env_remove("GDR_LOG")
        .env("NO_COLOR", "1")
        .env("TERM", "xterm")
        .env("GDR_LIBIBVERBS", "/nonexistent/libibverbs.so.1")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{line}: {text}");
    Some(text)
}

/// The lines that are left on a screen of so many columns: what is written goes to where the cursor
/// is, which carriage returns, "up" and "erase" move and clear, as bars use them.
fn screen(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0usize, 0usize);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\r' => column = 0,
            '\n' => {
                row += 1;
                column = 0;
            }
            '\x1b' if characters.peek() == Some(&'[') => {
                characters.next();
                let mut number = String::new();
                let kind = loop {
                    match characters.next() {
                        Some(digit @ ('0'..='9' | ';' | '?')) => number.push(digit),
                        Some(kind) => break kind,
                        None => return Vec::new(),
                    }
                };
                let count = number.parse::<usize>().unwrap_or(1);
                match kind {
                    'A' => row = row.saturating_sub(count),
                    'B' => row += count,
                    'K' => match number.as_str() {
                        "2" => lines[row].clear(),
                        _ => lines[row].truncate(column),
                    },
                    'm' | 'h' | 'l' => {}
                    other => panic!("an escape {number}{other} that this screen does not know"),
                }
            }
            '\t' => column = (column / 8 + 1) * 8,
            character => {
                if column >= columns {
                    row += 1;
                    column = 0;
                }
                while lines.len() <= row {
                    lines.push(Vec::new());
                }
                let line = &mut lines[row];
                while line.len() <= column {
                    line.push(' ');
                }
                line[column] = character;
                column += 1;
            }
        }
        while lines.len() <= row {
            lines.push(Vec::new());
        }
    }
    lines
        .into_iter()
        .map(|line| line.into_iter().collect::<String>().trim_end().to_owned())
        .collect()
}

#[test]
fn a_bar_comes_between_no_lines_and_is_gone_at_the_end() {
    for columns in [40, 130] {
        for line in [
            "loopback --simulate --port 14831 --size 4M -i 5",
            "loopback --simulate --port 14832 --sweep --size 4K -i 300",
            "copylat --simulate -s 1M -w 5000 -r 5000",
            "copybw --simulate -l -s 4M -w 2500 -r 2500",
            "apiperf --simulate -s 1M -n 15000",
            "pplat --simulate -t 300000",
            "sanity --simulate -t data_small_sizes -t basic_cumemalloc",
        ] {
            let Some(text) = on_terminal(columns, line) else {
                return;
            };
            let lines = screen(&text, columns.into());
            let left: Vec<_> = lines
                .iter()
                .filter(|line| line.contains(['█', '░']))
                .collect();
            assert!(left.is_empty(), "{columns}: {line}: {left:?} in {text:?}");
            let last = lines.iter().rfind(|line| !line.is_empty()).unwrap();
            assert!(
                "SIMULATED: no GPU was used: this result describes no hardware"
                    .ends_with(last.as_str()),
                "{columns}: {line}: {last}"
            );
        }
    }
}

#[test]
fn work_of_more_than_a_second_has_a_bar() {
    // How many rounds take a second is known of no machine. These take minutes on every one.
    const MOST: u32 = 200_000 << 8;
    let mut rounds = 200_000;
    loop {
        let Some(text) = on_terminal(80, &format!("pplat --simulate -t {rounds}")) else {
            return;
        };
        if text.contains(" round trips") {
            break;
        }
        assert!(rounds < MOST, "{text:?}");
        rounds *= 2;
    }
}

#[test]
fn color_never_reaches_the_help() {
    for line in [
        "--color never --help",
        "--color=never help doctor",
        "sanity --help --color never",
    ] {
        let Some(text) = on_terminal(80, line) else {
            return;
        };
        assert!(!text.contains('\x1b'), "{line}: {text:?}");
    }
}

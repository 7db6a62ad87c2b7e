//! What stands on a terminal when a command has ended: its lines, and nothing of its bar.

use std::process::Command;

use super::server::Server;
use super::*;

/// Returns what `gdr` sends to a terminal of this many columns; none where there is no `script`.
fn on_terminal(columns: u16, line: &str) -> Option<String> {
    let (status, text) = ended_on_terminal(columns, line)?;
    assert_eq!(status, 0, "{line}: {text}");
    Some(text)
}

/// Like [`on_terminal`], with the status.
fn ended_on_terminal(columns: u16, line: &str) -> Option<(i32, String)> {
    run_on_terminal(columns, &format!("exec $gdr {line}"))
}

/// Returns what a script of the shell sends to a terminal of this many columns, where `$gdr` is the command.
fn run_on_terminal(columns: u16, script: &str) -> Option<(i32, String)> {
    let gdr = cargo_bin!("gdr").display();
    let command = format!("gdr='{gdr}'; stty cols {columns} rows 24; {script}");
    let output = isolated(&mut Command::new("script"))
        .args(["-qec", &command, "/dev/null"])
        .env("NO_COLOR", "1")
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    Some((code(&output), text))
}

/// The widths at which every command is run.
const WIDTHS: [u16; 4] = [60, 80, 100, 140];

/// Returns the widths at which the help of a command is run: the narrowest, and another one that goes round.
fn help_widths(place: usize) -> [u16; 2] {
    [WIDTHS[0], WIDTHS[1 + place % 3]]
}

/// Returns the lines that are left on a screen of this many columns: what is written goes to where the cursor is, which
/// carriage returns, "up" and "erase" move and clear, as bars use them.
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
    for (columns, line) in [
        (40, "loopback --simulate --udp-port 14831 --size 4M -i 5"),
        (
            130,
            "loopback --simulate --udp-port 14832 --sweep --size 16 -i 300",
        ),
        (40, "copylat --simulate -s 1M -w 5000 -r 5000"),
        (130, "copybw --simulate -l -s 4M -w 2500 -r 2500"),
        (40, "apiperf --simulate -s 1M -n 15000"),
        (130, "pplat --simulate -t 300000"),
        (40, "pplat --simulate -t 300000"),
        (
            40,
            "sanity --simulate -t data_small_sizes -t basic_cumemalloc",
        ),
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
                .ends_with(last.trim_start()),
            "{columns}: {line}: {last}"
        );
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
fn a_measurement_by_time_shows_how_far_it_is_and_leaves_no_trace() {
    const PORT: u16 = 14841;
    let ports = format!("--port {PORT} --udp-port {PORT} --timeout 60");
    let server = Server::start(&format!("perf write-bw {ports}"));
    let line = format!("perf write-bw 127.0.0.1 -s 64 -D 3 {ports}");
    let Some(text) = on_terminal(100, &line) else {
        server.kill();
        return;
    };
    assert_contains!(text, "sizes, 64 bytes for 1 of 3 s");
    let left = screen(&text, 100).concat();
    assert!(!left.contains(['█', '░']), "{left}");
    assert_eq!(server.end().0, 0);
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

/// Commands that print something else each time, and what they print.
const MEASURING: [&str; 14] = [
    "apiperf --simulate -s 64K -n 5",
    "compare --simulate -n 2 --size 64K",
    "copybw --simulate --sweep -s 4 --threads 2",
    "copybw --simulate -s 64K -w 10 -r 10 --against cuda",
    "copylat --simulate -s 64K -w 10 -r 10",
    "devices",
    "doctor",
    "info --simulate",
    "loopback --simulate --udp-port 14833 --size 4K -i 2",
    "loopback --simulate --udp-port 14834 --sweep --size 4 -i 20",
    "loopback --provider verbs --simulate",
    "plan --simulate",
    "pplat --simulate -t 20",
    "sanity --simulate -t basic_cumemalloc -t basic_v2_forcepci_cumemalloc",
];

/// Commands that print what the machine or the moment makes of them.
const OTHERS: [&str; 11] = [
    "chaos --fuzz 1 -- true",
    "check -- true",
    "mesh --simulate --rank 0 --ranks 2 --meet 127.0.0.1:14873 --wait 1",
    "nics --example",
    "perf write-bw --port 14874 --udp-port 14874 --wait 1",
    "put 127.0.0.1:1/w /dev/null",
    "run -- true",
    "net --hosts 1 -- true",
    "trace -- true",
    "tune --simulate --dry-run -s 4 --threads 1",
    "watch 127.0.0.1:1/w",
];

/// Servers, and their clients.
const TWO_ENDS: [(&str, &str); 4] = [
    (
        "perf write-bw --port 14875 --udp-port 14875",
        "perf write-bw 127.0.0.1 -s 64,4K -n 5 --port 14875 --udp-port 14875",
    ),
    (
        "mesh --simulate --quick --rank 1 --ranks 2 --meet 127.0.0.1:14876",
        "mesh --simulate --quick --rank 0 --ranks 2 --meet 127.0.0.1:14876",
    ),
    (
        "serve --object name=w,size=1 --listen 127.0.0.1:14877",
        "ls 127.0.0.1:14877",
    ),
    (
        "serve --object name=w,size=1 --listen 127.0.0.1:14878",
        "get 127.0.0.1:14878/w --wait 1 || true",
    ),
];

/// Commands over an archive, which is `$node`.
const OF_ARCHIVES: [&str; 3] = [
    "collect --example -o $node",
    "diff $node $node",
    "fleet $node $node",
];

/// Commands that always print the same words.
const CONSTANT: [&str; 14] = [
    "doctor --example",
    "doctor list",
    "doctor show acs.path",
    "env --example",
    "explain 'ibv_reg_mr failed: Bad address'",
    "explain /nonexistent/nccl.log",
    "fix --example",
    "frobnicate",
    "perf write-bw --device nosuch",
    "peermem status --example",
    "topo --example",
    "topo --example --format tree",
    "topo why --example GPU3 mlx5_4",
    "version",
];

/// Lines that are too long for a terminal, of more than the one word that is longer than it.
fn overlong(text: &str, columns: usize) -> Vec<String> {
    let is_too_long = |line: &String| {
        // A terminal puts the parts of an assignment together again that is copied from it.
        let is_assignment = line.starts_with("export ");
        line.chars().count() > columns && !is_assignment && line.split_whitespace().count() > 1
    };
    // On a screen without an end lines stay as they were written.
    let lines = screen(text, usize::MAX);
    lines.into_iter().filter(is_too_long).collect()
}

/// Returns the commands that no list above has. They are run without arguments.
fn unlisted() -> Vec<String> {
    let ends = TWO_ENDS
        .iter()
        .flat_map(|(server, client)| [server, client]);
    let alone = MEASURING.iter().chain(&CONSTANT).chain(&OTHERS);
    let listed: Vec<_> = alone.chain(&OF_ARCHIVES).chain(ends).collect();
    let mut commands = commands_of("");
    commands.retain(|command| {
        let mut names = listed.iter().filter_map(|line| line.split(' ').next());
        !names.any(|name| name == command)
    });
    commands
}

#[test]
fn every_line_fits_a_terminal_from_60_columns_on() {
    let unlisted = unlisted();
    let unlisted = unlisted.iter().map(String::as_str);
    let alone = MEASURING.iter().chain(&CONSTANT).chain(&OTHERS).copied();
    let alone = alone.chain(unlisted);
    let alone = alone.map(|line| format!("exec $gdr {line}"));
    let with_server = TWO_ENDS.iter().map(|(server, client)| {
        format!(
            "$gdr {server} >/dev/null 2>&1 & \
             for i in $(seq 500); do $gdr {client} && break; done; kill $! 2>/dev/null"
        )
    });
    let mut scripts: Vec<(u16, String)> = alone
        .chain(with_server)
        .flat_map(|script| WIDTHS.map(|columns| (columns, script.clone())))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    for columns in WIDTHS {
        let node = folder.path().join(format!("{columns}.tar.gz"));
        let of_archive = |line| {
            (
                columns,
                format!("node='{}'; exec $gdr {line}", node.display()),
            )
        };
        scripts.extend(OF_ARCHIVES.map(of_archive));
    }
    for (columns, script) in scripts {
        let Some((_, text)) = run_on_terminal(columns, &script) else {
            return;
        };
        let found = overlong(&text, columns.into());
        assert!(found.is_empty(), "{columns}: {script}: {found:#?}");
    }
}

#[test]
fn no_word_is_broken_or_lost_on_a_narrow_terminal() {
    let words = |columns, line: &str| {
        let (_, text) = ended_on_terminal(columns, line)?;
        // Joints of commands, beginnings of comments, and heads of tables that are written in parts.
        let words = text
            .split_whitespace()
            .filter(|word| !["\\", "#"].contains(word));
        let mut words: Vec<String> = words.map(str::to_owned).collect();
        words.sort_unstable();
        if line.starts_with("topo --example") {
            words.dedup();
        }
        Some(words)
    };
    for line in CONSTANT {
        let [narrow @ .., widest] = WIDTHS;
        let Some(wide) = words(widest, line) else {
            return;
        };
        for columns in narrow {
            assert_eq!(words(columns, line).unwrap(), wide, "{columns}: gdr {line}");
        }
    }
}

/// Returns the commands that the help of `command` lists.
fn commands_of(command: &str) -> Vec<String> {
    let help = stdout(&gdr(format!("{command} --help").split_whitespace()));
    let listed = help.lines().take_while(|line| *line != "Common options:");
    let name = |line: &str| {
        let line = line.strip_prefix("  ")?;
        let (name, about) = line.split_once("  ")?;
        let is_name = name.bytes().all(|it| it.is_ascii_lowercase()) && !name.is_empty();
        (is_name && about.trim_start().starts_with(|it: char| it.is_uppercase()))
            .then(|| name.to_owned())
    };
    listed.filter_map(name).collect()
}

#[test]
fn every_help_fits_a_terminal_from_60_columns_on() {
    let mut lines = vec!["--help".to_owned()];
    for command in commands_of("") {
        let below = commands_of(&command).into_iter();
        lines.extend(below.map(|name| format!("help {command} {name}")));
        lines.push(format!("help {command}"));
    }
    assert!(lines.len() > 40, "{lines:?}");
    for (place, line) in lines.iter().enumerate() {
        for columns in help_widths(place) {
            let Some(text) = on_terminal(columns, line) else {
                return;
            };
            let found = overlong(&text, columns.into());
            assert!(found.is_empty(), "{columns}: gdr {line}: {found:#?}");
        }
    }
}

//! `gdr perf`: server and client in two processes.

use serde_json::Value;
use snapshot::assert_snapshot;

use super::server::Server;
use super::snapshots::section;
use super::*;

/// Starts a server that waits for a client at this TCP and UDP port.
fn serve(port: u16, options: &str) -> Server {
    Server::start(&format!(
        "perf {options} --port {port} --udp-port {port} --timeout 60"
    ))
}

fn client(port: u16, line: &str) -> Output {
    let ports = format!("--port {port} --udp-port {port} --timeout 60");
    gdr(["perf"]
        .into_iter()
        .chain(line.split_whitespace())
        .chain(ports.split_whitespace()))
}

#[test]
fn both_ends_print_what_the_client_chose_and_every_byte_is_compared() {
    let server = serve(14901, "");
    let output = client(
        14901,
        "send-bw 127.0.0.1 -s 1,64K -n 50 -q 2 -t 8 -b --verify",
    );
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let (status, served) = server.end();
    assert_eq!(status, 0, "{served}");
    for text in [stdout(&output), served] {
        assert_contains!(text, "send-bw, path MTU");
        assert_contains!(text, "2 queue pairs, 8 requests in flight each, both ways");
        assert_contains!(text, "every byte of every message, ");
        let sizes = text
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        assert_eq!(
            sizes.filter(|it| ["1", "65536"].contains(it)).count(),
            2,
            "{text}"
        );
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}

/// Runs both ends with `--verify`, and changes a bit of the payload of one message that arrives at the server or at the
/// client, under a right ICRC. Returns what both print, and where the bit was.
fn with_a_changed_bit(port: u16, at_server: bool, line: &str, op: u32) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let changing = |is_changing: bool| {
        let mut program = program();
        program.stderr(Stdio::piped());
        if is_changing {
            // Each queue pair would be struck, and any of them could be named.
            let rule = format!("corrupt icrc=mended dir=in qp=0 op={op} max=1");
            program.env("GDR_CHAOS", rule).env("GDR_CHAOS_LOG", &log);
        }
        program
    };
    let ports = format!("--port {port} --udp-port {port} --timeout 60");
    let server = Server::of(&mut changing(at_server), &format!("perf {ports}"));
    let client = changing(!at_server)
        .args(format!("perf {line} --verify {ports}").split_whitespace())
        .output()
        .unwrap();
    let (_, served) = server.end();
    let text = format!("{}{}{served}", stdout(&client), stderr(&client));
    assert_eq!(code(&client), 2, "{line}: {text}");
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let struck = log.lines().find(|line| line.contains("byte="));
    (
        text,
        struck.unwrap_or_else(|| panic!("{line}: {log}")).to_owned(),
    )
}

#[test]
fn one_changed_message_is_found_and_named_whatever_the_verb_the_size_and_the_end() {
    /// The largest path MTU of RoCE, which the loopback interface carries.
    const MTU: u64 = 4096;
    let named = Regex::new(r"(?:message|operation) (\d+)[^:]*: byte (\d+) is ").unwrap();
    let struck = Regex::new(r" packet=(\d+) byte=(\d+) ").unwrap();
    let numbers = |of: &Regex, text: &str| {
        let found = of.captures(text)?;
        Some((
            found[1].parse::<u64>().unwrap(),
            found[2].parse::<u64>().unwrap(),
        ))
    };
    let (server, client) = (true, false);
    for (at, verb, size, options) in [
        (server, "write-bw", 64, "-n 10000"),
        (server, "write-bw", 1, "-n 500 -q 2"),
        (server, "write-bw", 12289, "-n 500 -b"),
        (client, "write-bw", 4097, "-n 500 -b"),
        (server, "send-bw", 64, "-n 10000"),
        (client, "send-bw", 4097, "-n 500 -b -q 2"),
        (server, "send-bw", 7, "-n 500 -l 1 -Q 8 -I 64"),
        (client, "read-bw", 64, "-n 10000"),
        (client, "read-bw", 65537, "-n 500 -q 2"),
        (server, "read-bw", 8, "-n 500 -b"),
        (server, "write-lat", 64, "-n 10000"),
        (client, "write-lat", 4097, "-n 500"),
        (server, "send-lat", 64, "-n 10000"),
        (client, "send-lat", 3, "-n 500"),
        (client, "read-lat", 64, "-n 10000"),
        (client, "read-lat", 12289, "-n 500"),
        (client, "atomic-bw", 8, "-n 500"),
        (client, "atomic-lat", 8, "-n 500"),
    ] {
        // READs of neighbouring addresses count as one.
        let op = if verb.starts_with("read") { 9 } else { 444 };
        let line = format!("{verb} 127.0.0.1 -s {size} {options}");
        let (text, log) = with_a_changed_bit(14913, at, &line, op);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (packet, byte) = numbers(&struck, &log).unwrap();
        let packets = u64::div_ceil(size, MTU);
        let offset = match verb.starts_with("atomic") {
            // A result has network byte order on the wire.
            true => 7 - byte,
            false => packet % packets * MTU + byte,
        };
        assert_eq!(
            numbers(&named, &text),
            Some((packet / packets, offset)),
            "{line}: {text} {log}"
        );
    }
}

#[test]
fn an_option_that_the_server_was_given_is_the_clients_or_both_ends_name_the_difference() {
    const LINE: &str = "write-lat -s 64,128 -n 30 --warm-up 5 --verify --max-lat p99=900s";
    let server = serve(14914, LINE);
    let client_line = LINE.replace("write-lat", "write-lat 127.0.0.1");
    let output = client(14914, &client_line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let (status, served) = server.end();
    assert_eq!(status, 0, "{served}");
    for text in [stdout(&output), served] {
        assert_contains!(text, "PASS: every size meets its thresholds");
    }
    for (ours, theirs, difference) in [
        (
            "write-lat",
            "read-lat",
            "the verb read-lat, but the server was given write-lat",
        ),
        ("64,128", "64", "--size 64, but the server was given 64,128"),
        (
            "p99=900s",
            "p99=800s",
            "--max-lat p99=800000000us, but the server was given p99=900000000us",
        ),
    ] {
        let mut program = program();
        let ports = "--port 14914 --udp-port 14914";
        let server = Server::of(
            program.stderr(Stdio::piped()),
            &format!("perf {LINE} {ports}"),
        );
        let output = client(14914, &client_line.replace(ours, theirs));
        assert_eq!(code(&output), 2, "{}", stdout(&output));
        let (status, served) = server.end();
        assert_eq!(status, 2, "{served}");
        let remedy =
            format!("requests {difference}: use the same value at both ends, or leave it out");
        for text in [stderr(&output), served] {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_contains!(text, &remedy);
        }
    }
}

#[test]
fn striped_messages_are_compared_and_the_document_says_that_they_were() {
    let server = serve(14910, "");
    let line = "read-bw 127.0.0.1 -s 1,1M -n 20 -q 3 --stripe --verify --json";
    let output = client(14910, line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["plan"]["striping"], "on");
    assert_eq!(report["rows"][1]["messages"], 20);
    assert_eq!(report["rows"][1]["verified_bytes"], (100 + 20) << 20);
    let (status, served) = server.end();
    assert_eq!(status, 0, "{served}");
    let words = "one message after the other striped over them";
    let served = served.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_contains!(served, words);
}

#[test]
fn a_document_has_every_size_with_its_histogram_and_the_picture_its_values() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("curve.svg");
    // So that the document is the same where there is a single core.
    let cpu = first_cpu();
    let server = serve(14902, &format!("--simulate --cpus {cpu}"));
    let line = format!(
        "write-lat 127.0.0.1 -s 2,256 -n 30 --cpus {cpu} --json --svg {}",
        svg.display()
    );
    let output = client(14902, &line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(server.end().0, 0);
    let free = ["client.gdr", "server.gdr", "client.host", "server.host"];
    let (_, shape) = section("perf write-lat", &output, &free);
    assert_snapshot!("json/gdr.perf.txt", &shape);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(
        (&report["schema"], &report["version"]),
        (&"gdr.perf".into(), &1.into())
    );
    assert_eq!(report["simulated"], true);
    assert_eq!(report["server"]["memory"]["reached"], "direct");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let buckets = row["latency"]["histogram"].as_array().unwrap();
        let counted: u64 = buckets.iter().map(|it| it["count"].as_u64().unwrap()).sum();
        assert_eq!(counted, 30);
    }
    let picture = std::fs::read_to_string(svg).unwrap();
    assert!(
        picture.contains("SIMULATED") && picture.contains("<title>256 bytes: "),
        "{picture}"
    );
}

#[test]
fn csv_has_a_line_for_each_size_and_nothing_else() {
    let server = serve(14903, "");
    let output = client(14903, "read-bw 127.0.0.1 -s 8,4K -n 40 --csv");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(server.end().0, 0);
    let text = stdout(&output);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines.iter().all(|line| line.len() == lines[0].len()),
        "{text}"
    );
    assert_eq!((lines[1][1], lines[2][1]), ("8", "4096"));
}

#[test]
fn a_missed_threshold_is_the_exit_status_of_both_ends() {
    let server = serve(14904, "");
    let output = client(14904, "write-bw 127.0.0.1 -s 64 -n 40 --min 900Tbps");
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let (status, served) = server.end();
    assert_eq!(status, 2, "{served}");
    for text in [stdout(&output), served] {
        assert_contains!(text, "FAIL      64 bytes: ");
    }
    let server = serve(14905, "");
    let output = client(
        14905,
        "write-lat 127.0.0.1 -s 64 -n 40 --max-lat 900s,p99.9=900s",
    );
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("PASS: every size meets its thresholds"));
    assert_eq!(server.end().0, 0);
}

#[test]
fn what_cannot_be_measured_is_named_with_the_remedy() {
    for (line, status, words) in [
        ("write-bw 127.0.0.1 -s 0", 64, "a message of 0 bytes"),
        (
            "write-bw 127.0.0.1 -s 2G",
            64,
            "larger than the registered memory",
        ),
        ("atomic-bw 127.0.0.1 -s 16", 64, "8 bytes, not 16"),
        ("write-lat 127.0.0.1 -q 2", 64, "use 1 queue pair"),
        (
            "send-bw 127.0.0.1 -q 2 --stripe",
            64,
            "messages of send-bw cannot be striped",
        ),
        (
            "write-bw 127.0.0.1 --stripe",
            64,
            "cannot be striped over 1 queue pair",
        ),
        ("write-lat 127.0.0.1 -b", 64, "measure a bandwidth instead"),
        (
            "write-bw 127.0.0.1 -m 1500",
            64,
            "use 256, 512, 1024, 2048 or 4096",
        ),
        ("write-bw 127.0.0.1 -D 0", 64, "more than 0"),
        ("read-bw 127.0.0.1 -Q 17", 64, "or a larger depth"),
        (
            "write_bw 127.0.0.1",
            64,
            "a similar value exists: 'write-bw'",
        ),
        ("write-bw 127.0.0.1 --min 10us", 64, "is a time"),
        ("write-bw 127.0.0.1 --min 10", 64, "without a unit"),
        ("write-bw 127.0.0.1 --max-lat 10Gbps", 64, "is a rate"),
        (
            "write-lat 127.0.0.1 --min 1Gbps",
            64,
            "limit the latency instead",
        ),
        ("write-bw 127.0.0.1 -x 3", 64, "leave out the GID index 3"),
        ("write-bw 127.0.0.1 -i 2", 64, "needs a kernel device"),
        (
            "write-bw 127.0.0.1 -d mlx5_7",
            64,
            "device `mlx5_7` cannot be used",
        ),
        ("write-bw nowhere.invalid --insecure", 2, "nowhere.invalid"),
        ("write-bw 127.0.0.1", 2, "check that the peer listens"),
        (
            "write-bw 10.255.255.1",
            64,
            "--key-file FILE on both, or --insecure",
        ),
        (
            "write-bw --insecure --provider soft",
            64,
            "or the device with --device",
        ),
        ("write-bw --wait 1", 2, "a peer's connection"),
        (
            "write-bw 127.0.0.1 --gpu 7 --simulate",
            2,
            "--gpu takes an index",
        ),
        ("write-bw 127.0.0.1 --key-file /no/such", 2, "/no/such"),
    ] {
        let output = client(14906, line);
        assert_eq!(code(&output), status, "{line}: {}", stderr(&output));
        assert_contains!(stderr(&output), words, "{line}");
    }
}

#[test]
fn the_options_of_perftest_have_the_meaning_that_they_have_there() {
    let server = serve(14907, "-d 127.0.0.1");
    let line = "write-bw 127.0.0.1 -d 127.0.0.2 -s 512 -n 64 -t 16 -Q 8 -l 4 -q 2 -m 1024 -I 512 \
                --report_gbits --json";
    let output = client(14907, line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(server.end().0, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let plan = &report["plan"];
    for (name, value) in [
        ("tx_depth", 16),
        ("signal_every", 8),
        ("post_list", 4),
        ("queue_pairs", 2),
        ("mtu", 1024),
        ("inline", 512),
    ] {
        assert_eq!(plan[name], value, "{name}");
    }
    assert_eq!(report["path_mtu"], 1024);
    let device = report["client"]["device"]["device"].as_str().unwrap();
    assert!(device.starts_with("soft-127.0.0.2"), "{device}");
    let row = &report["rows"][0];
    assert_eq!(row["messages"], 128);
    // One sample for each completion.
    assert_eq!(row["latency"]["samples"], 16);
}

#[test]
fn a_command_line_of_perftest_is_taken_and_its_thresholds_judge() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let server = serve(14911, "--simulate --use_cuda=0");
    let line = format!(
        "write-bw 127.0.0.1 --simulate --use_cuda -F -c RC -N -n 40 -u 18 --ib-dev=127.0.0.2 \
         --qp=2 --perform_warm_up --data_validation --disable_numa -S 0 --out_json_file={}",
        file.display()
    );
    let output = client(14911, &line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(server.end().0, 0);
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(report["schema"], "gdr.perf");
    assert_eq!(report["plan"]["ack_timeout"], 18);
    assert_eq!(report["plan"]["verify"], "on");
    assert_eq!(report["client"]["memory"]["kind"], "gpu");
    assert_eq!(report["client"]["cpus"]["why"], "requested");

    let server = serve(14912, "");
    let line = "read-bw 127.0.0.1 -n 40 -o 4 -w 1000000000 -y 1000000000 --cpu_util";
    let output = client(14912, line);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let text = stdout(&output);
    for words in [
        "GB/s is less than",
        "million messages a second are fewer",
        "CPU s",
        " 4 requests",
    ] {
        assert_contains!(text, words);
    }
    server.end();
}

#[test]
fn options_of_perftest_without_a_meaning_here_say_what_has_it() {
    for (line, words) in [
        ("--rdma_cm", "over TCP at --port"),
        ("-c UD", "`gdr run -- ib_send_bw -c UD`"),
        ("--cuda_mem_type=1", "managed memory"),
        ("--use_rocm=0", "memory of an NVIDIA GPU"),
        ("-o 4", "--outs limits only READs and atomics"),
        ("--use_cuda_dmabuf", "choose a GPU with --gpu"),
        ("-S 16", "use 0 to 15"),
    ] {
        let output = gdr(format!("perf write-bw 127.0.0.1 {line}").split_whitespace());
        assert_eq!(code(&output), 64, "{line}: {}", stderr(&output));
        assert_contains!(stderr(&output), words, "{line}");
    }
}

/// Returns the first of the CPUs that this process may run on.
fn first_cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    list.trim().split(['-', ',']).next().unwrap().to_owned()
}

#[test]
fn an_end_runs_on_the_named_cpus_and_the_report_says_on_which_and_why() {
    let cpu = first_cpu();
    let server = serve(14908, &format!("--cpus {cpu}"));
    let line = "write-bw 127.0.0.1 -s 64 -n 40 --bind 127.0.0.9";
    let output = client(14908, &format!("{line} --json"));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let (status, served) = server.end();
    assert_eq!(status, 0, "{served}");
    assert_contains!(served, format!("CPUs {cpu} (requested)"));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["server"]["cpus"]["list"], cpu.as_str());
    let cpus = &report["client"]["cpus"];
    assert!(cpus["list"].is_string());
    // On a single core both ends use all of it.
    let why = cpus["why"].as_str().unwrap_or("other cores");
    assert!(why.ends_with("other cores"), "{why}");
    // The client connects from the address that it was given, and so does its device.
    let device = report["client"]["device"]["device"].as_str().unwrap();
    assert!(device.starts_with("soft-127.0.0.9"), "{device}");
}

#[test]
fn cpus_and_addresses_that_this_process_does_not_have_are_named() {
    let _server = serve(14909, "");
    for (line, status, words) in [
        ("--cpus 65000", 64, "this process may run on"),
        ("--cpus two", 64, "is not a list of CPUs"),
        ("--bind ::1", 64, "has no IPv4 address"),
        ("--bind 192.0.2.1", 2, "192.0.2.1"),
    ] {
        let output = client(14909, &format!("write-bw 127.0.0.1 {line}"));
        assert_eq!(code(&output), status, "{line}: {}", stderr(&output));
        assert_contains!(stderr(&output), words, "{line}");
    }
}

#[test]
fn a_server_of_another_command_is_named() {
    const AT: &str = "127.0.0.1:14932";
    for (server, client, options) in [
        ("perf write-bw --bind", "loopback --simulate --connect", ""),
        ("perf write-bw --bind", "ls", ""),
        ("loopback --simulate --listen", "perf write-bw", ""),
        ("compare --server --bind", "get", "/x"),
    ] {
        let waiting = Server::start(&format!("{server} {AT} --udp-port 14932 --wait 60"));
        let output = gdr(format!("{client} {AT}{options}").split(' '));
        assert_eq!(code(&output), 2, "{client}: {}", stdout(&output));
        let (named, error) = (server.split(' ').next().unwrap(), stderr(&output));
        let words = format!("`gdr {named}` listens at that address");
        assert!(error.contains(&words), "{client}: {error}");
        // It still waits for a client of its own.
        let output = gdr(format!("{client} {AT}{options}").split(' '));
        assert!(stderr(&output).contains(&words), "{client}: it has ended");
        waiting.kill();
    }
}

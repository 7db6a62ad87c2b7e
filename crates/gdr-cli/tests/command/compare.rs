//! `gdr compare`.

use serde_json::Value;
use snapshot::assert_contains;

use super::server::Server;
use super::{code, fine, gdr, json, simulated, stderr, stdout};

#[test]
fn the_table_has_both_ways_of_each_size_and_fits_the_terminal() {
    let text = fine("compare --size 64 -i 5 --udp-port 14890");
    assert_eq!(text.lines().next(), Some("SIMULATED: --simulate was given"));
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    for row in ["4  staged", "4  direct", "64  staged", "64  direct"] {
        assert!(text.contains(row), "{row}: {text}");
    }
    for model in ["staged    ", "direct    ", "by these  "] {
        let lines = text.lines().filter(|line| line.starts_with(model));
        assert!(lines.count() > 0, "{model}: {text}");
    }
}

#[test]
fn the_document_has_the_figures_of_the_table() {
    let report = json("compare --size 16 -i 5 --udp-port 14891");
    assert_eq!(report["schema"], "gdr.compare");
    assert_eq!(report["simulated"], true);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for model in ["staged_model", "direct_model"] {
        for part in ["fixed_ns", "ns_per_byte", "worst_error"] {
            assert!(
                report[model][part].as_f64() >= Some(0.0),
                "{model}: {report}"
            );
        }
    }
    assert!(report["crossing"]["faster"].is_string(), "{report}");
    for row in rows {
        let median = |way: &str| row[way]["total"]["median_ns"].as_f64().unwrap();
        let ratio = row["ratio"].as_f64().unwrap();
        assert!((ratio - median("staged") / median("direct")).abs() < 1e-9);
    }
}

#[test]
fn one_size_has_no_model_and_sizes_that_cannot_be_used_are_named() {
    let report = json("compare --smallest 64 --size 64 -i 5 --udp-port 14892");
    assert!(report["staged_model"].is_null() && report["crossing"].is_null());
    assert!(report["published"].is_null());
    for (sizes, named) in [
        ("--smallest 64 --size 16", "between 64 and 16 bytes"),
        ("--smallest 6 --size 6", "6 bytes cannot be transferred"),
        ("--size 0", "between 4 and 0 bytes"),
        (
            "--smallest 4G --size 4G",
            "4294967296 bytes cannot be transferred",
        ),
        ("--kiro --size 4K", "cannot be used with"),
    ] {
        let output = simulated(&format!("compare --udp-port 14893 {sizes}"));
        assert_eq!(code(&output), 64, "{sizes}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(named),
            "{sizes}: {}",
            stderr(&output)
        );
    }
}

/// Starts a server that offers frames at this TCP and UDP port.
fn serve(port: u16) -> Server {
    Server::start(&format!(
        "compare --server --bind 127.0.0.1:{port} --udp-port {port} --timeout 60"
    ))
}

fn client(port: u16, options: &str) -> std::process::Output {
    let line =
        format!("compare 127.0.0.1:{port} --udp-port {port} --timeout 60 --simulate {options}");
    gdr(line.split_whitespace())
}

/// Returns the lines from the titles of the table on, without those about the simulation.
fn table(text: &str) -> Vec<&str> {
    let lines = text.lines().filter(|line| !line.starts_with("SIMULATED"));
    lines
        .skip_while(|line| !line.contains("median us"))
        .collect()
}

#[test]
fn both_processes_print_the_same_table_and_draw_the_same_picture() {
    let folder = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["client.svg", "server.svg"].map(|name| folder.path().join(name));
    let server = Server::start(&format!(
        "compare --server --bind 127.0.0.1:14870 --udp-port 14870 --timeout 60 --svg {}",
        theirs.display()
    ));
    let output = client(14870, &format!("--size 64 -i 5 --svg {}", ours.display()));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let (status, served) = server.end();
    assert_eq!(status, 0, "{served}");
    let measured = stdout(&output);
    assert_eq!(table(&measured), table(&served));
    assert!(table(&served).len() > 6, "{served}");
    assert!(
        served.starts_with("SIMULATED: the GPU of the client"),
        "{served}"
    );
    for text in [&measured, &served] {
        assert!(
            text.contains("from      ") && text.contains("to        "),
            "{text}"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }
    let [ours, theirs] = [ours, theirs].map(|path| std::fs::read_to_string(path).unwrap());
    assert_eq!(ours, theirs);
    assert_contains!(ours, "<title>64 bytes: ");
}

#[test]
fn the_document_of_a_client_names_both_processes() {
    let server = serve(14871);
    let output = client(14871, "--smallest 16 --size 16 -i 5 --json");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(server.end().0, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["schema"], "gdr.compare");
    let both = &report["processes"];
    assert_eq!(both["role"], "client");
    assert!(both["from"]["gdr"].is_string() && both["to"]["gdr"].is_string());
    let device = report["path"]["from"]["device"].as_str().unwrap();
    assert!(device.starts_with("soft-127.0.0.1"), "{device}");
}

/// Returns the PCI addresses of the simulated GPUs.
fn simulated_gpus() -> [String; 2] {
    let info = json("info");
    [0, 1].map(|at| info["gpus"][at]["pci"].as_str().unwrap().to_owned())
}

#[test]
fn frames_in_memory_of_one_gpu_are_received_by_the_other() {
    let gpus = simulated_gpus();
    for (port, from, to) in [(14776, 1, 0), (14777, 0, 1)] {
        let line = format!("compare --from-gpu {from} --gpu {to} --size 16 -i 5 --udp-port {port}");
        let report = json(&line);
        assert_eq!(report["pci"], gpus[to].as_str());
        assert_eq!(report["source"]["kind"], "gpu");
        assert_eq!(report["source"]["gpu"]["pci"], gpus[from].as_str());
        assert_eq!(report["source"]["reached"], "direct");
        assert_eq!(report["rows"].as_array().unwrap().len(), 2);
        let text = fine(&line);
        let frames = format!(
            "frames    in memory of simulated: Simulated GPU ({})",
            gpus[from]
        );
        assert!(text.contains(&frames), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }
    let text = fine("compare --size 16 -i 5 --udp-port 14778");
    assert_contains!(text, "\nframes    in host memory\n");
    let unknown = simulated("compare --from-gpu 7 --udp-port 14778 --json");
    assert_eq!(code(&unknown), 2);
    let fault: Value = serde_json::from_slice(&unknown.stdout).unwrap();
    assert_eq!(fault["error"]["name"], "no_such_device");
}

#[test]
fn frames_in_memory_of_a_gpu_of_the_server_are_named_at_both_ends() {
    let gpus = simulated_gpus();
    let folder = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["client.svg", "server.svg"].map(|name| folder.path().join(name));
    let server = Server::start(&format!(
        "compare --server --from-gpu 1 --simulate --bind 127.0.0.1:14779 --udp-port 14779 --timeout 60 \
         --svg {}",
        theirs.display()
    ));
    let output = client(14779, &format!("--size 64 -i 5 --svg {}", ours.display()));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let (status, served) = server.end();
    assert_eq!(status, 0, "{served}");
    let measured = stdout(&output);
    assert_eq!(table(&measured), table(&served));
    let frames = format!("in memory of simulated: Simulated GPU ({})", gpus[1]);
    for text in [&measured, &served] {
        assert_contains!(text, format!("frames    {frames}"));
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("SIMULATED"), "{text}");
    }
    // The server has said it in its first line.
    assert_eq!(served.matches("SIMULATED").count(), 1, "{served}");
    let [ours, theirs] = [ours, theirs].map(|path| std::fs::read_to_string(path).unwrap());
    assert_eq!(ours, theirs);
    assert_contains!(ours, format!("frames: {frames}"));
}

#[test]
fn a_server_that_is_killed_while_a_client_measures_is_named() {
    let server = serve(14872);
    let port = "127.0.0.1:14872";
    let line = format!("compare {port} --udp-port 14872 --timeout 60 --simulate --size 4M --csv");
    let mut measuring = super::program()
        .args(line.split_whitespace())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines =
        std::io::BufRead::lines(std::io::BufReader::new(measuring.stdout.take().unwrap()));
    // The titles, and the first size.
    lines.next().unwrap().unwrap();
    lines.next().unwrap().unwrap();
    server.kill();
    while lines.next().is_some() {}
    let output = measuring.wait_with_output().unwrap();
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let words = stderr(&output);
    assert!(
        words.contains("the peer ended the run or closed the connection")
            || words.contains("closed the connection during"),
        "{words}"
    );
}

#[test]
fn options_of_another_end_are_usage_errors() {
    for (line, named) in [
        ("compare --key-file k", "apply only with a peer"),
        ("compare --server --size 4K", "cannot be used with"),
        ("compare --server --gpu 0", "cannot be used with"),
        (
            "compare --server --from-gpu 1 --gpu 0",
            "cannot be used with",
        ),
        ("compare --server --memory cuMemCreate", "--from-gpu"),
        ("compare 127.0.0.1 --from-gpu 1", "cannot be used with"),
        ("compare --from-gpu mlx5_0", "not the name of a GPU"),
        ("compare 127.0.0.1 --from 127.0.0.2", "cannot be used with"),
        ("compare --bind 127.0.0.1", "--server"),
        ("compare 10.255.255.1 --simulate", "--key-file FILE on both"),
        (
            "compare --server --insecure --provider soft",
            "or the device with --from",
        ),
    ] {
        let output = gdr(line.split_whitespace());
        assert_eq!(code(&output), 64, "{line}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(named),
            "{line}: {}",
            stderr(&output)
        );
    }
}

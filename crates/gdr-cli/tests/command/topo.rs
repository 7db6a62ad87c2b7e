//! `gdr topo` and `gdr nics`.

use serde_json::Value;
use snapshot::assert_contains;

use super::{code, gdr, stderr, stdout};

fn topo(line: &str) -> std::process::Output {
    gdr(["topo"].into_iter().chain(line.split_whitespace()))
}

#[test]
fn the_matrix_is_laid_out_as_nvidia_smis_and_says_which_nics_are_nearest() {
    let output = topo("--example");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(
        line("GPU0").starts_with("GPU0\t X \tPIX\tNODE\tNODE\tSYS"),
        "{text}"
    );
    assert_contains!(text, "\n  NIC3: mlx5_3\n");
    assert_contains!(text, "\n  GPU0: mlx5_1, mlx5_2 (PIX)\n");
}

#[test]
fn other_tools_words_and_every_format_are_there() {
    assert!(stdout(&topo("--example --as nccl")).contains("GPU0\t X \tPIX\tPHB"));
    assert!(stdout(&topo("--example --as ucx")).contains("GPU0\t X \tdefault\tnode"));
    for (format, begins) in [
        ("tree", "NUMA node 0\n"),
        ("svg", "<svg "),
        ("dot", "graph topology {"),
        ("nccl-xml", "<system version=\"1\">"),
    ] {
        let text = stdout(&topo(&format!("--example --format {format}")));
        assert!(text.starts_with(begins), "{format}: {text}");
    }
    let report: Value = serde_json::from_str(&stdout(&topo("--example --json"))).unwrap();
    assert_eq!(report["schema"], "gdr.topo");
    assert_eq!(report["devices"].as_array().unwrap().len(), 18);
    assert_eq!(report["pairs"].as_array().unwrap().len(), 18 * 17 / 2);
}

#[test]
fn the_caption_of_a_picture_has_the_name_of_the_file_and_not_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("node.tar.gz");
    assert_eq!(
        code(&gdr(["collect", "--example", "-o", node.to_str().unwrap()])),
        0
    );
    let picture = stdout(&topo(&format!("--from {} --format svg", node.display())));
    assert_contains!(picture, ">example-node, node.tar.gz, file of ");
}

#[test]
fn the_way_between_two_devices_is_shown_hop_by_hop() {
    let text = stdout(&topo("why --example GPU3 mlx5_4"));
    assert!(text.starts_with("GPU3 - mlx5_4: PIX\n"), "{text}");
    assert_contains!(text, "ReqRedir CmpltRedir redirects peer-to-peer requests");
    let report: Value =
        serde_json::from_str(&stdout(&topo("why --example --json GPU3 NIC4"))).unwrap();
    assert_eq!(report["nccl_gdr_by_default"], true);
    assert_eq!(report["hops"].as_array().unwrap().len(), 5);
    let wrong = topo("why --example GPU3 mlx5_44");
    assert_eq!(code(&wrong), 64);
    assert!(stderr(&wrong).contains("device `mlx5_44` does not exist: the devices are GPU0"));
}

#[test]
fn a_matrix_of_nvidia_smi_is_compared_cell_by_cell() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("topo.txt");
    std::fs::write(&path, stdout(&topo("--example"))).unwrap();
    let check = |path: &std::path::Path| {
        gdr([
            "topo",
            "check",
            "--example",
            "--matrix",
            path.to_str().unwrap(),
        ])
    };
    let same = check(&path);
    assert_eq!(code(&same), 0, "{}", stderr(&same));
    assert_eq!(stdout(&same), "324 cells are equal, 0 differ\n");
    let text = stdout(&topo("--example")).replacen("PIX", "PHB", 1);
    std::fs::write(&path, text).unwrap();
    let other = check(&path);
    assert_eq!(code(&other), 2);
    assert!(stdout(&other).contains("GPU0 - GPU1: nvidia-smi says PHB, the tree PIX"));
    std::fs::write(&path, b"\x00\xff nonsense").unwrap();
    let garbage = check(&path);
    assert_eq!(code(&garbage), 2);
    assert_contains!(stderr(&garbage), "topo.txt");
}

#[test]
fn nics_are_listed_with_their_gpu() {
    let text = stdout(&gdr(["nics", "--example"]));
    let line = text.lines().find(|line| line.contains("mlx5_1/1")).unwrap();
    assert!(
        line.contains("0000:19:00.0") && line.contains("GPU0"),
        "{line}"
    );
    let report: Value =
        serde_json::from_str(&stdout(&gdr(["nics", "--example", "--json"]))).unwrap();
    assert_eq!(report["schema"], "gdr.nics");
    assert_eq!(report["nics"].as_array().unwrap().len(), 10);
    // Whatever this machine has.
    assert!(matches!(code(&gdr(["nics"])), 0 | 3));
}

/// Returns a capture in a file of its own.
fn file(content: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file
}

const MATRIX: &str = "\t\u{1b}[4mGPU0\tmlx5_0\tmlx5_1\tCPU Affinity\u{1b}[0m\n\
                      GPU0\t X \tPIX\tPHB\t0-7\n\
                      mlx5_0\tPIX\t X \tPHB\n\
                      mlx5_1\tPHB\tPHB\t X \n";

const DRAWN: &str = "\
-[0000:40]-+-01.1-[41-44]----00.0-[42-44]--+-00.0-[43]----00.0  NVIDIA Corporation GH100 [H100 PCIe]
           |                               \\-01.0-[44]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
           \\-03.1-[45]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
";

#[test]
fn a_drawing_of_lspci_gives_the_matrix_that_nvidia_smi_printed() {
    let (tree, matrix) = (file(DRAWN.as_bytes()), file(MATRIX.as_bytes()));
    let (tree, matrix) = (
        tree.path().to_str().unwrap(),
        matrix.path().to_str().unwrap(),
    );
    let output = topo(&format!("check --from {tree} --matrix {matrix}"));
    assert_eq!(code(&output), 0, "{}", stdout(&output));
    assert!(stdout(&output).contains("9 cells are equal, 0 differ"));
    let text = stdout(&topo(&format!("why --from {tree} GPU0 NIC0")));
    assert_contains!(text, "0000:41:00.0");
    let text = stdout(&topo(&format!("--from {matrix}")));
    assert_contains!(text, "GPU0: mlx5_0 (PIX)");
    let text = stdout(&topo(&format!("why --from {matrix} GPU0 mlx5_1")));
    assert_contains!(text, "GPU0 - mlx5_1: PHB\n");
}

#[test]
fn a_capture_may_come_on_standard_input() {
    let piped = |arguments: &[&str], content: &[u8]| {
        let mut command = super::clean(assert_cmd::cargo::cargo_bin_cmd!("gdr"));
        command
            .args(arguments)
            .write_stdin(content)
            .output()
            .unwrap()
    };
    let output = piped(&["topo", "--from", "-"], MATRIX.as_bytes());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("GPU0: mlx5_0 (PIX)"));

    // An archive, too, which is more than text.
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("node.tar.gz");
    let collected = gdr(["collect", "--example", "-o", archive.to_str().unwrap()]);
    assert_eq!(code(&collected), 0, "{}", stderr(&collected));
    let bytes = std::fs::read(&archive).unwrap();
    let whole = piped(&["topo", "--from", "-"], &bytes);
    let named = gdr(["topo", "--from", archive.to_str().unwrap()]);
    assert_eq!(stdout(&whole), stdout(&named));

    let refused = piped(&["nics", "--from", "-"], b"hello\n");
    assert_eq!(code(&refused), 66);
    assert_contains!(stderr(&refused), "nor another capture");
}

#[test]
fn captures_without_what_is_asked_for_say_so() {
    let matrix = file(MATRIX.as_bytes());
    let matrix = matrix.path().to_str().unwrap();
    for (line, status, word) in [
        ("--as nccl", 64, "only the distance names of nvidia-smi"),
        ("--format svg", 64, "lspci -D -nn -vvv"),
        ("check --matrix /dev/null", 66, "needs a PCI tree"),
        ("why GPU0 mlx5_9", 64, "the devices are GPU0"),
    ] {
        let output = topo(&format!("{line} --from {matrix}"));
        assert_eq!(code(&output), status, "{line}: {}", stderr(&output));
        assert_contains!(stderr(&output), word, "{line}");
    }
}

#[test]
fn garbage_is_refused_with_its_name_and_a_reason() {
    for (content, word) in [
        (
            &b"hello\n"[..],
            "neither an archive of a node nor another capture",
        ),
        (b"<system>\x01</system>", "byte 8 is 0x01"),
        (b"<system>", "not an NCCL topology"),
        (b"[{}]", "not a dump from rdma_topo"),
        (b"\x1f\x8b\x08\x00garbage", "cannot be unpacked"),
        (b"00:01.0 PCI bridge: X\n", "which buses are behind"),
    ] {
        let file = file(content);
        let path = file.path().to_str().unwrap();
        let output = topo(&format!("--from {path}"));
        assert_eq!(
            (code(&output), stdout(&output).as_str()),
            (66, ""),
            "{word}"
        );
        let said = stderr(&output);
        assert!(said.contains(path) && said.contains(word), "{said}");
    }
}

#[test]
fn a_directory_that_is_no_root_is_named_and_not_judged() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["doctor", "topo", "nics"] {
        let output = gdr([command, "--from", dir.path().to_str().unwrap()]);
        assert_eq!(code(&output), 66, "{command}");
        assert_contains!(stderr(&output), "is neither a copy of a node's root");
    }
}

#[test]
fn the_path_between_a_gpu_and_a_nic_quotes_what_others_measured_at_this_distance() {
    let why = |pair: [&str; 2]| {
        let output = gdr([&["topo", "why", "--example"][..], &pair].concat());
        stdout(&output).replace('\n', " ")
    };
    let near = why(["GPU0", "mlx5_1"]);
    assert_contains!(
        near,
        "measured elsewhere at PIX (100 Gb/s RoCE, 2023): 10 GB/s (2x"
    );
    let far = why(["GPU0", "mlx5_0"]);
    assert_contains!(
        far,
        "measured elsewhere at SYS (100 Gb/s RoCE, 2023): 2 GB/s"
    );
    let gpus = why(["GPU0", "GPU1"]);
    assert!(!gpus.contains("measured elsewhere"), "{gpus}");
}

//! Bad input of `gdr perf`, `gdr compare` and `gdr mesh`: each is a named error with the remedy.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;

use fake_ibverbs::DeviceSpec;
use snapshot::assert_contains;

use super::devices::with;
use super::{code, gdr, simulated, stderr};

/// The line of an error, its exit status, and words of its remedy.
type Case<'a> = (&'a str, i32, &'a str);

fn assert_named(command: &str, cases: &[Case<'_>]) {
    for (line, status, words) in cases {
        let line = format!("{command} {line}");
        let output = simulated(&line);
        assert_eq!(code(&output), *status, "{line}: {}", stderr(&output));
        let text = stderr(&output);
        assert_contains!(text, words, "{line}");
    }
}

#[test]
fn a_size_of_nothing_and_one_beyond_the_region_are_refused() {
    assert_named(
        "perf write-bw 127.0.0.1",
        &[
            ("-s 0", 64, "a message of 0 bytes"),
            ("-s 2G", 64, "use at most 1073741824 (1G)"),
            ("-s 4Q", 64, "is not a size"),
        ],
    );
    assert_named(
        "compare",
        &[
            ("--size 0", 64, "between 4 and 0 bytes"),
            (
                "--smallest 2G --size 2G",
                64,
                "use a multiple of 4 up to 1G",
            ),
        ],
    );
    assert_named(
        "mesh --rank 0 --ranks 2",
        &[
            ("--size 0", 64, "a message of 0 bytes"),
            ("--size 2G", 64, "use at most 1073741824 (1G)"),
        ],
    );
}

#[test]
fn a_threshold_of_another_unit_is_refused() {
    assert_named(
        "perf write-bw 127.0.0.1",
        &[
            ("--min 10us", 64, "use a rate with a unit"),
            ("--min 10", 64, "use a rate with a unit"),
            ("--max-lat 10Gbps", 64, "use a time with a unit"),
        ],
    );
    assert_named(
        "mesh --rank 0 --ranks 2",
        &[
            (
                "--least 70Gbps",
                64,
                "is not a percentage; use a number from 0 to 100",
            ),
            (
                "--least 101",
                64,
                "is not a percentage; use a number from 0 to 100",
            ),
            ("--duration 10ms", 64, "is not a count"),
        ],
    );
}

#[test]
fn a_host_that_does_not_resolve_is_named() {
    let remedy = "the host nowhere.invalid has no known address";
    for command in [
        "perf write-bw nowhere.invalid --insecure",
        "compare nowhere.invalid --insecure",
        "mesh --rank 1 --ranks 2 --meet nowhere.invalid --insecure",
    ] {
        assert_named(command, &[("", 2, remedy)]);
        assert_named(command, &[("", 2, "use its address instead")]);
    }
}

#[test]
fn a_key_that_others_may_read_and_one_that_is_not_there_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    fs::write(&key, "sixteen bytes or more\n").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    for command in [
        "perf write-bw 127.0.0.1",
        "compare 127.0.0.1",
        "mesh --rank 1 --ranks 2 --meet 127.0.0.1",
    ] {
        let readable = format!("--key-file {}", key.display());
        assert_named(command, &[(&readable, 2, "chmod 600")]);
        assert_named(command, &[("--key-file /no/such", 2, "/no/such")]);
    }
}

#[test]
fn a_gid_that_a_device_does_not_have_is_refused() {
    let devices = [DeviceSpec::roce("mlx5_0", Ipv4Addr::new(10, 0, 0, 1))];
    for (gid, status, words) in [
        ("99", 2, "no GID 99"),
        ("-1", 64, "-1"),
        ("fe80::1", 64, "invalid value 'fe80::1'"),
    ] {
        let line = "perf write-bw 127.0.0.1 -d mlx5_0";
        let gid = format!("--gid-index={gid}");
        let arguments: Vec<_> = line.split(' ').chain([gid.as_str()]).collect();
        let output = with(&devices, &arguments);
        assert_eq!(code(&output), status, "{gid}: {}", stderr(&output));
        assert_contains!(stderr(&output), words, "{gid}");
    }
}

#[test]
fn a_host_file_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        format!("--host-file {}", path.display())
    };
    let many = file("many", "localhost slots=4\n");
    for (options, words) in [
        (file("empty", "# nothing\n"), "names no host"),
        (file("word", "a b c\n"), "line 1, `a b c`, is not a host"),
        (file("slots", "a slots=x\n"), "line 1 has `x` ranks"),
        (
            file("others", "198.51.100.1\n198.51.100.2\n"),
            "add this host",
        ),
        (file("twice", "127.0.0.1\n127.0.0.2\n"), "both this host"),
        (many.clone(), "4 ranks run here: give each --local-rank"),
        (format!("{many} --local-rank 4"), "from 0 to 3"),
        (format!("{many} --rank 4"), "--rank 4 of --ranks 4"),
        (format!("{many} --ranks 4"), "cannot be used with"),
        ("--host-file /no/such".to_owned(), "the host file /no/such"),
    ] {
        assert_named("mesh", &[(&options, 64, words)]);
    }
}

#[test]
fn a_name_with_a_mistake_is_answered_with_the_one_that_was_meant() {
    for (line, meant) in [
        ("doctr", "'doctor'"),
        ("loopback --sizee 4", "'--size'"),
        ("doctor --only gpu.presnt", "did you mean gpu.present?"),
        ("doctor show acs.pth", "did you mean acs.path?"),
        ("fix acs.pth", "did you mean acs.path?"),
        ("fix undo", "`gdr fix --undo` to undo them"),
        ("perf wirte-bw", "a similar value exists: 'write-bw'"),
        ("serve --object name=a,siez=4K", "did you mean size?"),
        ("env --for nclc", "'nccl'"),
    ] {
        let output = gdr(line.split_whitespace());
        assert_eq!(code(&output), 64, "{line}");
        let text = stderr(&output)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(text.contains(meant), "{line}: {text}");
    }
    let other = gdr(["doctor", "--only", "nothing.like.it"]);
    assert_contains!(stderr(&other), "`gdr doctor list`");
}

#[test]
fn a_device_is_named_by_one_option_in_every_command() {
    for command in [
        "loopback", "perf", "compare", "mesh", "serve", "ls", "get", "put", "watch", "run",
    ] {
        let help = gdr([command, "--help"]);
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        assert_contains!(help, "--device <", "{command}");
    }
    let output = simulated("loopback --device 127.0.0.7 --udp-port 0 --size 4K -i 1 --json");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = report.to_string();
    assert_contains!(text, "127.0.0.7");
    let both = simulated("loopback --device 127.0.0.7 --to 127.0.0.8");
    assert_eq!(code(&both), 64);
}

use std::io::Read as _;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use snapshot::assert_contains;
use tar::{Builder, EntryType, Header};

use super::*;
use crate::collect::collect;
use crate::inventory::Inventory;
use crate::source::{Errno, MAX_FILE, MemorySource};
use crate::{Absence, example};

fn origin() -> Origin {
    Origin {
        gdr: "0.1.0".into(),
        collected: 1_800_000_000,
        host: "example-node".into(),
        kernel: "6.8.0".into(),
        machine: "x86_64".into(),
        root: true,
        redacted: false,
    }
}

fn of_example() -> Archive {
    let node = example::node()
        .denied("@kmsg")
        .failing("/proc/meminfo", Errno(5));
    collect(&node, origin(), |_| {})
}

fn written(archive: &Archive) -> Vec<u8> {
    let mut bytes = Vec::new();
    archive.write(&mut bytes).unwrap();
    bytes
}

/// Builds a tar with a manifest that declares this many entries, followed by what `fill` adds.
fn tar_with(entries: usize, fill: impl FnOnce(&mut Builder<Vec<u8>>)) -> Vec<u8> {
    let manifest = format!(
        "{{\"schema\":\"gdr-archive\",\"version\":1,\"gdr\":\"0.1.0\",\"collected\":0,\
         \"host\":\"h\",\"kernel\":\"k\",\"machine\":\"m\",\"root\":true,\"redacted\":false,\
         \"entries\":{entries},\"lists\":{{}},\"absent\":{{}}}}"
    );
    let mut tar = Builder::new(Vec::new());
    file(&mut tar, manifest::NAME, manifest.as_bytes());
    fill(&mut tar);
    tar.into_inner().unwrap()
}

fn entry(tar: &mut Builder<Vec<u8>>, name: &str, kind: EntryType, target: &str, data: &[u8]) {
    let mut header = Header::new_gnu();
    // Written directly into the header, as the library refuses such names.
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_cksum();
    tar.append(&header, data).unwrap();
}

fn file(tar: &mut Builder<Vec<u8>>, name: &str, data: &[u8]) {
    entry(tar, name, EntryType::Regular, "", data);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

fn refusal(bytes: &[u8]) -> ArchiveError {
    Archive::read(bytes).expect_err("the archive must be refused")
}

#[test]
fn an_archive_is_read_back_completely() {
    let archive = of_example();
    let again = Archive::read(written(&archive).as_slice()).unwrap();
    assert_eq!(again.origin(), archive.origin());
    assert_eq!(again.files(), archive.files());
    assert_eq!(again.denied(), archive.denied());
    assert_eq!(again.read("/proc/meminfo"), Err(Absence::Failed(Errno(5))));
    assert_eq!(again.read("@kmsg"), Err(Absence::Denied));
    assert_eq!(Inventory::read(&again), Inventory::read(&archive));
    for (at, _) in archive.content.iter() {
        assert_eq!(again.read(at), archive.read(at), "file {at}");
        assert_eq!(again.list(at), archive.list(at), "list {at}");
        assert_eq!(again.link(at), archive.link(at), "link {at}");
    }
}

#[test]
fn the_same_archive_makes_the_same_bytes_and_few_of_them() {
    let archive = of_example();
    let bytes = written(&archive);
    assert_eq!(bytes, written(&archive));
    assert!(bytes.len() < 200_000, "{}", bytes.len());
    let again = Archive::read(bytes.as_slice()).unwrap();
    assert_eq!(written(&again), bytes);
}

#[test]
fn an_archive_is_known_by_its_first_bytes_and_read_unpacked_too() {
    let bytes = written(&of_example());
    let mut unpacked = Vec::new();
    GzDecoder::new(bytes.as_slice())
        .read_to_end(&mut unpacked)
        .unwrap();
    assert!(Archive::is_archive(&bytes[..1024]) && Archive::is_archive(&unpacked[..512]));
    assert!(Archive::read(unpacked.as_slice()).is_ok());
    for other in [
        &b""[..],
        b"<system version=\"1\">",
        b"\x1f\x8b",
        b"BZh9",
        &gzip(b"hello"),
    ] {
        assert!(!Archive::is_archive(other));
        assert!(Archive::read(other).is_err());
    }
}

#[test]
fn other_files_are_refused_by_what_they_are() {
    for (bytes, word) in [
        (&b"\x28\xb5\x2f\xfd...."[..], "zstd"),
        (b"BZh91AY", "bzip2"),
        (b"", "empty"),
        (&[b'x'; 2048], "not a tar"),
    ] {
        let error = refusal(bytes).to_string();
        assert_contains!(error, word);
    }
    let mut tar = Builder::new(Vec::new());
    file(&mut tar, "etc/passwd", b"root");
    let error = refusal(&tar.into_inner().unwrap());
    assert!(matches!(error, ArchiveError::Other(_)), "{error}");
    assert!(matches!(
        Archive::open("/no/such/file"),
        Err(ArchiveError::File { .. })
    ));
}

#[test]
fn a_later_version_is_refused_with_both_numbers() {
    let mut tar = Builder::new(Vec::new());
    file(
        &mut tar,
        manifest::NAME,
        b"{\"schema\":\"gdr-archive\",\"version\":2,\"gdr\":\"9.1\"}",
    );
    let error = refusal(&tar.into_inner().unwrap());
    assert!(
        matches!(
            error,
            ArchiveError::Version {
                found: 2,
                known: 1,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("9.1"));
}

#[test]
fn entries_outside_the_archive_are_refused() {
    for name in [
        "../etc/passwd",
        "/etc/passwd",
        "root/../etc/passwd",
        "root//etc",
        "root/./x",
        "rootkit",
        "root",
        "root/a/..",
    ] {
        let error = refusal(&tar_with(1, |tar| file(tar, name, b"x")));
        assert!(matches!(error, ArchiveError::Path(_)), "{name}: {error}");
    }
}

#[test]
fn entries_that_are_neither_files_nor_links_are_refused() {
    for kind in [
        EntryType::Link,
        EntryType::Char,
        EntryType::Block,
        EntryType::Fifo,
        EntryType::Directory,
    ] {
        let error = refusal(&tar_with(1, |tar| {
            entry(tar, "root/x", kind, "/etc/passwd", b"")
        }));
        assert!(
            matches!(error, ArchiveError::Kind { .. }),
            "{kind:?}: {error}"
        );
    }
}

#[test]
fn a_link_to_the_outside_is_resolved_inside() {
    let bytes = tar_with(2, |tar| {
        entry(
            tar,
            "root/a",
            EntryType::Symlink,
            "../../../etc/passwd",
            b"",
        );
        entry(tar, "root/b", EntryType::Symlink, "b", b"");
    });
    let archive = Archive::read(bytes.as_slice()).unwrap();
    assert_eq!(archive.read("/a"), Err(Absence::NotCollected));
    assert_eq!(archive.resolve("/a"), Ok("/etc/passwd".to_owned()));
    assert_eq!(archive.read("/b"), Err(Absence::Failed(Errno(40))));
}

#[test]
fn a_place_that_is_there_twice_is_refused() {
    let twice = tar_with(2, |tar| {
        file(tar, "root/x", b"1");
        file(tar, "root/x", b"2");
    });
    assert!(matches!(refusal(&twice), ArchiveError::Duplicate(_)));
    let both = tar_with(2, |tar| {
        file(tar, "root/x", b"1");
        entry(tar, "root/x", EntryType::Symlink, "y", b"");
    });
    assert!(matches!(refusal(&both), ArchiveError::Duplicate(_)));
}

#[test]
fn missing_entries_are_noticed_even_where_the_tar_ends_well() {
    let error = refusal(&tar_with(2, |tar| file(tar, "root/x", b"1")));
    assert!(matches!(error, ArchiveError::Truncated(_)), "{error}");
}

#[test]
fn bombs_are_stopped_before_they_unfold() {
    // A gibibyte of zeros in one file, in one long name, and after the end.
    let big = |kind: EntryType| {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..6].copy_from_slice(b"root/x");
        header.set_entry_type(kind);
        header.set_size(1 << 30);
        header.set_cksum();
        let mut bytes = tar_with(1, |_| {});
        // In place of the two blocks that end a tar.
        bytes.truncate(bytes.len() - 1024);
        bytes.extend_from_slice(header.as_bytes());
        bytes
    };
    for kind in [
        EntryType::Regular,
        EntryType::GNULongName,
        EntryType::XHeader,
    ] {
        let mut bytes = big(kind);
        bytes.resize(64 << 20, 0);
        let error = refusal(&gzip(&bytes));
        assert!(
            matches!(error, ArchiveError::TooLarge(_)),
            "{kind:?}: {error}"
        );
    }
    let mut after = tar_with(0, |_| {});
    after.resize(64 << 20, 0);
    let error = refusal(&gzip(&after));
    assert!(
        matches!(error, ArchiveError::TooLarge(Limit::Ratio)),
        "{error}"
    );
}

#[test]
fn files_and_manifests_have_a_largest_size() {
    let error = refusal(&tar_with(1, |tar| {
        file(tar, "root/x", &vec![1; MAX_FILE + 1])
    }));
    assert!(
        matches!(error, ArchiveError::TooLarge(Limit::File)),
        "{error}"
    );
    let mut tar = Builder::new(Vec::new());
    file(&mut tar, manifest::NAME, &vec![b' '; 17 << 20]);
    let error = refusal(&tar.into_inner().unwrap());
    assert!(
        matches!(error, ArchiveError::TooLarge(Limit::Manifest)),
        "{error}"
    );
}

#[test]
fn an_archive_that_could_not_be_read_again_is_not_written() {
    let mut content = Content::default();
    for n in 0..65 {
        content.record(&format!("/{n}")).file = Some(Ok(vec![0; MAX_FILE]));
    }
    let mut out = Vec::new();
    let error = Archive::new(origin(), content).write(&mut out).unwrap_err();
    assert!(
        matches!(error, ArchiveError::TooLarge(Limit::Content)),
        "{error}"
    );
    assert!(out.is_empty());
}

#[test]
fn a_node_with_a_thousand_functions_is_no_bomb() {
    let mut node = MemorySource::new();
    for number in 0..1000_u32 {
        // Like a node with many, nearly identical virtual functions.
        let bdf = format!(
            "0000:{:02x}:{:02x}.{}",
            number >> 8,
            number >> 3 & 0x1f,
            number & 7
        );
        let path = format!("/sys/devices/pci0000:00/0000:00:01.0/{bdf}");
        node = node
            .link_to(
                &format!("/sys/bus/pci/devices/{bdf}"),
                &format!("../../../{}", &path[5..]),
            )
            .file(&format!("{path}/config"), vec![0; 4096])
            .file(
                &format!("{path}/resource"),
                "0x0000000000000000\n".repeat(18),
            );
        for name in [
            "vendor",
            "device",
            "class",
            "numa_node",
            "local_cpulist",
            "enable",
            "label",
        ] {
            node = node.file(&format!("{path}/{name}"), "0\n");
        }
    }
    let archive = collect(&node, origin(), |_| {});
    let bytes = written(&archive);
    let again = Archive::read(bytes.as_slice()).unwrap();
    assert_eq!(again.files(), archive.files());
}

#[test]
fn a_cut_at_any_byte_is_detected() {
    let node = MemorySource::new()
        .file("/proc/cmdline", "quiet")
        .file("/proc/version", "x".repeat(3000));
    let bytes = written(&collect(&node, origin(), |_| {}));
    for len in 0..bytes.len() {
        let read = Archive::read(&bytes[..len]);
        assert!(read.is_err(), "{len} of {} bytes", bytes.len());
    }
    let mut unpacked = Vec::new();
    GzDecoder::new(bytes.as_slice())
        .read_to_end(&mut unpacked)
        .unwrap();
    // The two empty blocks at the end carry nothing.
    for len in (0..unpacked.len() - 1024).step_by(64) {
        assert!(
            Archive::read(&unpacked[..len]).is_err(),
            "{len} bytes unpacked"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damage_anywhere_is_an_error_or_changes_nothing_else(
        hits in proptest::collection::vec((0..1_usize << 16, any::<u8>()), 1..8)
    ) {
        let node = MemorySource::new().file("/proc/cmdline", "quiet").denied("@kmsg");
        let bytes = written(&collect(&node, origin(), |_| {}));
        let mut unpacked = Vec::new();
        GzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked).unwrap();
        for (at, value) in hits {
            let at = at % unpacked.len();
            unpacked[at] = value;
        }
        // Does not panic, and an archive that can be read can be written.
        if let Ok(archive) = Archive::read(unpacked.as_slice()) {
            let again = Archive::read(written(&archive).as_slice()).unwrap();
            prop_assert_eq!(again.read("/proc/cmdline"), archive.read("/proc/cmdline"));
            prop_assert_eq!(Inventory::read(&again), Inventory::read(&archive));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let _ = Archive::read(bytes.as_slice());
        let _ = Archive::is_archive(&bytes);
    }

    #[test]
    fn any_node_is_replayed(
        files in proptest::collection::btree_map("(/[a-c]{1,2}){1,3}", any::<Vec<u8>>(), 0..12),
        links in proptest::collection::btree_map("(/[a-c]{1,2}){1,3}", "(\\.\\./){0,2}[a-c]{1,2}", 0..6),
        asked in proptest::collection::vec("(/[a-c]{1,2}){1,4}", 0..24),
        later in proptest::collection::vec("(/[a-c]{1,2}){1,4}", 0..24),
    ) {
        let mut node = MemorySource::new();
        for (path, target) in &links {
            let below = format!("{path}/");
            if !links.keys().any(|other| other.starts_with(&below)) {
                node = node.link_to(path, target);
            }
        }
        for (path, bytes) in &files {
            // A file has no entries below it, not even through links.
            let below = format!("{path}/");
            let above = path.match_indices('/').skip(1).map(|(end, _)| &path[..end]);
            let below_a_file = above.into_iter().any(|above| node.read(above).is_ok());
            if !below_a_file
                && node.list(path).is_err()
                && !files.keys().chain(links.keys()).any(|other| other.starts_with(&below))
            {
                node = node.file(path, bytes);
            }
        }
        let recorder = crate::collect::Recorder::new(&node);
        for path in &asked {
            let _ = (recorder.read(path), recorder.list(path), recorder.link(path));
        }
        let archive = recorder.finish(origin());
        let archive = Archive::read(written(&archive).as_slice()).unwrap();
        for path in &asked {
            prop_assert_eq!(archive.read(path), node.read(path), "file {}", path);
            prop_assert_eq!(archive.list(path), node.list(path), "list {}", path);
            prop_assert_eq!(archive.link(path), node.link(path), "link {}", path);
        }
        // A path that was not recorded is "not collected", or correct.
        for path in &later {
            let read = archive.read(path);
            prop_assert!(read == Err(Absence::NotCollected) || read == node.read(path), "file {}", path);
        }
    }
}

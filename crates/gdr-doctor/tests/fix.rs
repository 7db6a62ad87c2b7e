//! Mending and taking back, on a directory laid out like a node.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gdr_doctor::fix::{ApplyError, Done, Journal, LiveSystem, System, Undone, apply, undo};
use gdr_doctor::{Action, Register};
use snapshot::assert_contains;

const PORT: &str = "0000:40:01.1";
const ACS_CONTROL: usize = 0x126;
const DEVICE_CONTROL: usize = 0x48;

/// A node of one PCI port with ACS, one interface and a module that can be loaded.
struct Node {
    dir: tempfile::TempDir,
    hands: Fake,
}

/// System on a directory, in which modules are folders and one register may be stubborn.
struct Fake {
    live: LiveSystem,
    root: PathBuf,
    stubborn: bool,
    modules_fail: bool,
}

impl System for Fake {
    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        self.live.read(path)
    }

    fn exists(&self, path: &str) -> bool {
        self.live.exists(path)
    }

    fn poke(&mut self, path: &str, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.stubborn && path.ends_with("/config") {
            return Ok(());
        }
        self.live.poke(path, at, bytes)
    }

    fn put(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.live.put(path, content)
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        self.live.remove(path)
    }

    fn load_module(&mut self, module: &str) -> io::Result<()> {
        if self.modules_fail {
            return Err(io::Error::other("Invalid argument"));
        }
        fs::create_dir_all(self.root.join("sys/module").join(module))
    }

    fn unload_module(&mut self, module: &str) -> io::Result<()> {
        fs::remove_dir(self.root.join("sys/module").join(module))
    }
}

fn put(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let place = root.join(path);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::write(place, content).unwrap();
}

fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let mut config = vec![0u8; 4096];
    config[..4].copy_from_slice(&[0x22, 0x10, 0x83, 0x14]);
    config[0x06] = 0x10;
    config[0x34] = 0x40;
    config[0x40] = 0x10;
    config[DEVICE_CONTROL..DEVICE_CONTROL + 2].copy_from_slice(&0x2936u16.to_le_bytes());
    config[0x100..0x104].copy_from_slice(&0x1201_0001u32.to_le_bytes());
    config[0x120..0x124].copy_from_slice(&0x0001_000du32.to_le_bytes());
    config[ACS_CONTROL..ACS_CONTROL + 2].copy_from_slice(&0x001du16.to_le_bytes());
    put(root, &format!("sys/bus/pci/devices/{PORT}/config"), config);
    put(root, "sys/class/net/ens1f0/mtu", "1500\n");
    put(root, "proc/sys/kernel/random/boot_id", "first\n");
    let hands = Fake {
        live: LiveSystem::at(root),
        root: root.to_owned(),
        stubborn: false,
        modules_fail: false,
    };
    Node { dir, hands }
}

impl Node {
    fn journal(&self) -> Journal {
        Journal::open(&self.dir.path().join("var/lib/gdr/journal")).unwrap()
    }

    fn half(&self, at: usize) -> u16 {
        let path = format!("sys/bus/pci/devices/{PORT}/config");
        let config = fs::read(self.dir.path().join(path)).unwrap();
        u16::from_le_bytes([config[at], config[at + 1]])
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.dir.path().join(path)).unwrap()
    }

    fn apply(&mut self, action: &Action) -> Result<Done, ApplyError> {
        let mut journal = self.journal();
        apply(action, &mut self.hands, &mut journal)
    }

    fn undo(&mut self) -> Vec<Result<Undone, ApplyError>> {
        let mut journal = self.journal();
        undo(&mut self.hands, &mut journal)
    }
}

fn acs_off() -> Action {
    Action::WriteConfig {
        bdf: PORT.parse().unwrap(),
        register: Register::AcsControl,
        mask: 0x002c,
        value: 0,
        was: 0x001d,
    }
}

fn all() -> Vec<Action> {
    vec![
        acs_off(),
        Action::WriteConfig {
            bdf: PORT.parse().unwrap(),
            register: Register::DeviceControl,
            mask: 0x7000,
            value: 0x5000,
            was: 0x2936,
        },
        Action::LoadModule {
            module: "nvidia_peermem".into(),
        },
        Action::WriteFile {
            path: "/etc/modules-load.d/nvidia-peermem.conf".into(),
            content: "nvidia_peermem\n".into(),
        },
        Action::Mtu {
            netdev: "ens1f0".into(),
            mtu: 9000,
        },
    ]
}

#[test]
fn everything_that_is_done_is_undone() {
    let mut node = node();
    for action in all() {
        assert!(
            matches!(node.apply(&action), Ok(Done::Changed(_))),
            "{action}"
        );
    }
    assert_eq!(node.half(ACS_CONTROL), 0x0011);
    assert_eq!(node.half(DEVICE_CONTROL), 0x5936);
    assert_eq!(
        node.text("etc/modules-load.d/nvidia-peermem.conf"),
        "nvidia_peermem\n"
    );
    assert_eq!(node.text("sys/class/net/ens1f0/mtu").trim(), "9000");

    for outcome in node.undo() {
        assert!(matches!(outcome, Ok(Undone::Restored(_))), "{outcome:?}");
    }
    assert_eq!(node.half(ACS_CONTROL), 0x001d);
    assert_eq!(node.half(DEVICE_CONTROL), 0x2936);
    assert!(!node.hands.exists("/etc/modules-load.d/nvidia-peermem.conf"));
    assert!(!node.hands.exists("/sys/module/nvidia_peermem"));
    assert_eq!(node.text("sys/class/net/ens1f0/mtu").trim(), "1500");
    assert!(node.undo().is_empty(), "it is undone once");
}

#[test]
fn what_is_so_already_is_not_touched_and_not_in_the_journal() {
    let mut node = node();
    for action in all() {
        node.apply(&action).unwrap();
    }
    let changes = node.journal().standing().len();
    for action in all() {
        assert!(
            matches!(node.apply(&action), Ok(Done::Already(_))),
            "{action}"
        );
    }
    assert_eq!(node.journal().standing().len(), changes);
}

#[test]
fn a_register_that_ignores_what_is_written_is_noticed() {
    let mut node = node();
    node.hands.stubborn = true;
    let error = node.apply(&acs_off()).unwrap_err();
    assert!(matches!(error, ApplyError::Ignored { .. }));
    let said = error.to_string();
    assert_contains!(said, "was set to 0x0011, but reads 0x001d");
    // It is in the journal, and there is nothing to take back.
    assert!(matches!(node.undo()[..], [Ok(Undone::Nothing(_))]));
}

#[test]
fn a_file_that_was_there_comes_back_and_one_that_was_changed_since_stays() {
    let mut node = node();
    let write = |content: &str| Action::WriteFile {
        path: "/etc/security/limits.d/99-gdr.conf".into(),
        content: content.into(),
    };
    put(
        node.dir.path(),
        "etc/security/limits.d/99-gdr.conf",
        "mine\n",
    );
    let place = node.dir.path().join("etc/security/limits.d/99-gdr.conf");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).unwrap();
    node.apply(&write("ours\n")).unwrap();
    assert!(matches!(node.undo()[..], [Ok(Undone::Restored(_))]));
    let mode = fs::metadata(&place).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(node.text("etc/security/limits.d/99-gdr.conf"), "mine\n");

    node.apply(&write("ours\n")).unwrap();
    put(
        node.dir.path(),
        "etc/security/limits.d/99-gdr.conf",
        "edited\n",
    );
    assert!(matches!(node.undo()[..], [Ok(Undone::Changed(_))]));
    assert_eq!(node.text("etc/security/limits.d/99-gdr.conf"), "edited\n");
}

#[test]
fn a_reboot_undoes_registers_by_itself() {
    let mut node = node();
    node.apply(&acs_off()).unwrap();
    put(
        node.dir.path(),
        "proc/sys/kernel/random/boot_id",
        "second\n",
    );
    // After the boot the firmware chose the same value by itself: it is not ours to change.
    assert!(matches!(node.undo()[..], [Ok(Undone::Nothing(_))]));
    assert_eq!(node.half(ACS_CONTROL), 0x0011);
}

#[test]
fn a_function_that_a_driver_holds_is_not_removed() {
    let mut node = node();
    let function = format!("sys/bus/pci/devices/{PORT}");
    put(node.dir.path(), &format!("{function}/driver/x"), "");
    put(
        node.dir.path(),
        &format!("{function}/uevent"),
        "DRIVER=mlx5_core\n",
    );
    let error = node
        .apply(&Action::Rescan {
            bdf: PORT.parse().unwrap(),
        })
        .unwrap_err();
    assert_contains!(
        error.to_string(),
        "0000:40:01.1 is in use by the driver mlx5_core",
        "{error}"
    );
    assert!(node.journal().standing().is_empty());
}

#[test]
fn a_function_without_a_driver_is_removed_and_found_again() {
    let mut node = node();
    put(
        node.dir.path(),
        &format!("sys/bus/pci/devices/{PORT}/remove"),
        "",
    );
    put(node.dir.path(), "sys/bus/pci/rescan", "");
    let done = node.apply(&Action::Rescan {
        bdf: PORT.parse().unwrap(),
    });
    assert!(matches!(done, Ok(Done::Changed(_))), "{done:?}");
    assert_eq!(node.text("sys/bus/pci/rescan"), "1");
}

#[test]
fn a_module_that_does_not_load_says_why() {
    let mut node = node();
    node.hands.modules_fail = true;
    let error = node.apply(&all()[2]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "loading nvidia_peermem failed: Invalid argument"
    );
}

#[test]
fn what_is_gone_is_named() {
    let mut node = node();
    let error = node
        .apply(&Action::Mtu {
            netdev: "gone0".into(),
            mtu: 9000,
        })
        .unwrap_err();
    assert_contains!(
        error.to_string(),
        "/sys/class/net/gone0/mtu no longer exists",
        "{error}"
    );
}

#[test]
fn without_a_journal_nothing_is_changed() {
    let mut node = node();
    put(node.dir.path(), "blocked", "");
    let path = node.dir.path().join("blocked/journal");
    assert!(Journal::open(&path).is_err());
    assert!(node.journal().standing().is_empty());
    assert_eq!(node.half(ACS_CONTROL), 0x001d);
    // Config space of 64 bytes, as all but root read it.
    let config = format!("sys/bus/pci/devices/{PORT}/config");
    let bytes = fs::read(node.dir.path().join(&config)).unwrap();
    put(node.dir.path(), &config, &bytes[..64]);
    assert!(matches!(node.apply(&acs_off()), Err(ApplyError::Gone(_))));
}

//! Replacing names and addresses in an archive, so that it can be published.

mod pseudonym;
mod text;

use self::text::{Nature, Text};
use super::{Archive, ArchiveError, Content, PathRecord};
use crate::pci::{ConfigSpace, ExtendedId, SWITCH_MARK, Unread, has_switch_mark};
use crate::source::{Absence, DatumExt, Source, virtual_path};

impl Archive {
    /// Returns the archive with names of hosts and users, Ethernet and IP addresses, GIDs, GUIDs, UUIDs and serial
    /// numbers replaced by pseudonyms.
    ///
    /// Pseudonyms are consistent within an archive, but not across archives. Device vendors, which addresses share a
    /// network, and which are link-local stay visible, so that checks give the same verdicts. `users` are names to
    /// replace in addition to the users found in the archive. Files that are not text are dropped, except config space.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Redaction`] if a name cannot be searched for.
    pub fn redact(&self, users: &[String]) -> Result<Self, ArchiveError> {
        let unsearchable = |error: regex::Error| ArchiveError::Redaction(error.to_string());
        let mut text = Text::new().map_err(unsearchable)?;
        text.know(&self.hosts(), users).map_err(unsearchable)?;
        // Two passes: the first finds devices and users, which only some files show, and the second replaces them
        // everywhere.
        content(&self.content, &mut text);
        let mut users = users.to_vec();
        users.extend(text.pseudonyms.known(pseudonym::Kind::User));
        users.sort();
        users.dedup();
        text.know(&self.hosts(), &users).map_err(unsearchable)?;
        let content = content(&self.content, &mut text);
        let mut origin = self.origin.clone();
        origin.redacted = true;
        if !origin.host.is_empty() {
            "host-1".clone_into(&mut origin.host);
        }
        Ok(Self { origin, content })
    }

    /// Returns the node's names: the kernel's, and that without its domain.
    fn hosts(&self) -> Vec<String> {
        let mut hosts = vec![self.origin.host.clone()];
        hosts.extend(self.text("/proc/sys/kernel/hostname").ok());
        let uname = self.text(virtual_path::UNAME).ok();
        let names = uname.iter().flat_map(|text| text.lines());
        hosts.extend(names.filter_map(|line| Some(line.strip_prefix("nodename ")?.to_owned())));
        let short = hosts.iter().filter_map(|host| host.split('.').next());
        let short: Vec<String> = short.map(str::to_owned).collect();
        hosts.extend(short);
        hosts.sort();
        hosts.dedup();
        hosts
    }
}

fn content(all: &Content, text: &mut Text) -> Content {
    let mut made = Content::default();
    for (at, record) in all.iter() {
        // Administrators name files after users, and the kernel names interfaces after addresses.
        let of_names = if at.starts_with("/etc/") {
            Nature::Free
        } else {
            Nature::Name
        };
        let file = record.file.as_ref().map(|file| {
            file.by_ref()
                .and_then(|bytes| match redact_file(at, bytes, text) {
                    Some(bytes) => Ok(bytes),
                    None => Err(Absence::NotCollected),
                })
        });
        let list = record.list.as_ref().map(|list| {
            list.by_ref().map(|names| {
                let mut names: Vec<String> = names
                    .iter()
                    .map(|name| text.redact(name, of_names))
                    .collect();
                names.sort();
                names
            })
        });
        let link = record
            .link
            .as_ref()
            .map(|link| link.by_ref().map(|target| text.redact(target, of_names)));
        *made.record(&text.redact(at, of_names)) = PathRecord { file, list, link };
    }
    made
}

/// Returns a redacted file; `None` if it cannot be searched.
fn redact_file(at: &str, bytes: &[u8], text: &mut Text) -> Option<Vec<u8>> {
    if at.ends_with("/config") && at.starts_with("/sys/devices/pci") {
        return Some(without_serial_number(bytes));
    }
    if at.ends_with("/vpd") && at.starts_with("/sys/devices/pci") {
        // It contains serial numbers, of which only one marker matters.
        let mark = has_switch_mark(bytes).then_some(SWITCH_MARK);
        return Some(mark.unwrap_or_default().into());
    }
    if at.starts_with("/sys/firmware/efi/efivars/SecureBoot-") {
        return Some(bytes.to_vec());
    }
    let content = std::str::from_utf8(bytes).ok()?;
    if at.ends_with("/node_desc") {
        // An administrator may have set arbitrary text.
        let device = at.rsplit('/').nth(1).unwrap_or_default();
        return Some(format!("host-1 {device}\n").into_bytes());
    }
    if at.ends_with("/slurm.conf") {
        // The file names the whole cluster, so only its limits are kept.
        let limits = content.lines().filter(|line| {
            let start = line.trim_start().get(..9).unwrap_or_default();
            start.eq_ignore_ascii_case("Propagate")
        });
        let limits: String = limits.map(|line| format!("{line}\n")).collect();
        return Some(limits.into_bytes());
    }
    Some(text.redact(content, nature(at)).into_bytes())
}

/// Returns the kind of text in a file.
fn nature(at: &str) -> Nature {
    if at.starts_with("/etc/security/") {
        return Nature::Limits;
    }
    let free = [
        "/@addresses",
        "/@kmsg",
        "/@env",
        "/@uname",
        "/@systemd/",
        "/proc/cmdline",
        "/proc/version",
        "/proc/driver/nvidia/version",
        "/proc/net/",
        "/proc/sys/kernel/hostname",
        "/etc/",
    ];
    let is_free = free.iter().any(|start| at.starts_with(start)) && at != "/etc/os-release";
    if is_free { Nature::Free } else { Nature::Value }
}

/// Clears the Device Serial Number in config space (PCI Express Base Specification 6.0, 7.9.3), which a NIC derives
/// from its Ethernet address.
fn without_serial_number(bytes: &[u8]) -> Vec<u8> {
    const SERIAL_NUMBER: ExtendedId = ExtendedId(0x0003);
    let mut made = bytes.to_vec();
    if let Ok(config) = ConfigSpace::new(bytes.to_vec(), Unread::NotCollected)
        && let Some(at) = config.extended_capabilities().find(SERIAL_NUMBER)
        && let Some(number) = made.get_mut(usize::from(at.0) + 4..usize::from(at.0) + 12)
    {
        number.fill(0);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Origin;
    use crate::collect::{Recorder, read_all};
    use crate::inventory::Inventory;
    use crate::pci::{Function, Tree};
    use crate::{example, source::MemorySource};

    /// Returns the example node, with a user's names and addresses in its log and files.
    fn node() -> MemorySource {
        example::node()
            .file("/proc/sys/kernel/hostname", "gpu17.cluster.example\n")
            .file(
                "@uname",
                "sysname Linux\nnodename gpu17.cluster.example\nmachine x86_64\n",
            )
            .file(
                "@kmsg",
                "[    1.000000] systemd[1]: Set hostname to <gpu17.cluster.example>.\n\
                 [    2.000000] usb 1-1: SerialNumber: 0123SECRET\n\
                 [    3.000000] mlx5_core 0000:19:00.0: Port module event: 9c:63:c0:5e:41:11\n\
                 [    4.000000] segfault in /home/alice/bin/train, peer 10.77.3.9\n",
            )
            .file(
                "@env",
                "NCCL_TOPO_FILE=/home/alice/topo.xml\nNCCL_COMM_ID=10.77.3.9:5000\n",
            )
            .file(
                "/etc/security/limits.d/90-rdma.conf",
                "bob - memlock unlimited\n* - memlock 1\n",
            )
            .file("/etc/security/limits.d/bob.conf", "")
            .file(
                "/etc/slurm/slurm.conf",
                "ClusterName=lighthouse\npropagateResourceLimitsExcept=MEMLOCK\n",
            )
            .file(
                "/proc/self/cgroup",
                format!("0::/docker/{}\n", "c0ffee42".repeat(8)),
            )
            .file(
                "/sys/class/net/enx9c63c05e4110/address",
                "9c:63:c0:5e:41:10\n",
            )
            .file("/sys/firmware/acpi/blob", [0xff, 0xfe, 0x00])
    }

    fn archive() -> Archive {
        let node = node();
        let recorder = Recorder::new(&node);
        read_all(&recorder, |_| {});
        let slurm = recorder.text("/etc/slurm/slurm.conf");
        assert!(slurm.is_ok());
        let origin = Origin::of(&node, "0.1.0", 1_800_000_000);
        recorder.finish(origin)
    }

    /// Writes an archive, and unpacks it: manifest, headers and files.
    fn unpacked(archive: &Archive) -> Vec<u8> {
        let mut packed = Vec::new();
        archive.write(&mut packed).unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(
            &mut flate2::read::GzDecoder::new(packed.as_slice()),
            &mut bytes,
        )
        .unwrap();
        bytes
    }

    fn holds(bytes: &[u8], original: &str) -> bool {
        bytes
            .windows(original.len())
            .any(|window| window.eq_ignore_ascii_case(original.as_bytes()))
    }

    #[test]
    fn the_file_has_none_of_the_originals() {
        let before = unpacked(&archive());
        let after = unpacked(&archive().redact(&["dave".to_owned()]).unwrap());
        let mut originals: Vec<String> = [
            "gpu17",
            "cluster.example",
            "0123SECRET",
            "alice",
            "bob - ",
            "bob.conf",
            "lighthouse",
            "10.77.3.9",
            "c0ffee42",
            "0a14:1e20",
            "0a14:1e25",
            "6d1c3a52",
        ]
        .map(str::to_owned)
        .to_vec();
        for nic in 0..10 {
            originals.push(format!("5e:41:{:02x}", 0x10 + nic));
            originals.push(format!("5e:41{:02x}", 0x10 + nic));
            originals.push(format!("5e41{:02x}", 0x10 + nic));
        }
        for original in &originals {
            assert!(!holds(&after, original), "{original}");
        }
        // The search finds the originals in the node before redaction.
        for original in [
            "gpu17",
            "alice",
            "9c:63:c0:5e:41:10",
            "005e:4111",
            "c05e4110",
            "6d1c3a52",
        ] {
            assert!(holds(&before, original), "{original}");
        }
        // Nor in config space, in its byte order.
        let serial = [0x12, 0x41, 0x5e, 0x03];
        assert!(before.windows(4).any(|window| window == serial));
        assert!(!after.windows(4).any(|window| window == serial));
    }

    #[test]
    fn the_node_is_the_same_but_for_its_addresses() {
        let (before, after) = (archive(), archive().redact(&[]).unwrap());
        let (mut a, mut b) = (Inventory::read(&before), Inventory::read(&after));
        // The serial number in config space is also an address.
        let without_config = |tree: Tree| {
            Tree::new(tree.functions().map(|function| {
                let config = Err(Absence::Missing);
                let function = Function {
                    config,
                    ..function.clone()
                };
                let parent = tree.parent(function.bdf).unwrap();
                (function, parent)
            }))
        };
        let strip = |inventory: &mut Inventory| {
            inventory.tree = inventory.tree.clone().map(without_config);
            inventory.netdevs = std::mem::replace(&mut inventory.netdevs, Err(Absence::Missing))
                .map(|netdevs| {
                    let unnamed = netdevs.into_iter().map(|mut netdev| {
                        netdev.address = Err(Absence::Missing);
                        if netdev.name.starts_with("enx") {
                            netdev.name.clear();
                        }
                        netdev
                    });
                    unnamed.collect()
                });
        };
        strip(&mut a);
        strip(&mut b);
        assert_eq!(a, b);
        for path in [
            "/proc/cmdline",
            "/proc/modules",
            "@kernel/config",
            "/etc/os-release",
            "@libraries",
        ] {
            assert_eq!(before.read(path), after.read(path), "{path}");
        }
        assert!(after.origin().redacted);
        assert_eq!(after.origin().host, "host-1");
    }

    #[test]
    fn kinds_of_addresses_stay_to_be_seen() {
        let after = archive().redact(&[]).unwrap();
        let gid = |index: usize| {
            let path = format!("/sys/class/infiniband/mlx5_0/ports/1/gids/{index}");
            after.text(&path).unwrap()
        };
        assert!(gid(1).starts_with("fe80:0000:0000:0000:9e63:c0ff:fe"));
        assert!(
            gid(3).starts_with("0000:0000:0000:0000:0000:ffff:c612:"),
            "{}",
            gid(3)
        );
        assert_eq!(gid(5), "0000:0000:0000:0000:0000:0000:0000:0000");
        let name = after.list("/sys/class/net").unwrap();
        let name = name.iter().find(|name| name.starts_with("enx")).unwrap();
        assert_ne!(name, "enx9c63c05e4110");
        assert!(
            after
                .read(&format!("/sys/class/net/{name}/address"))
                .is_ok()
        );
    }

    #[test]
    fn only_the_limits_of_slurm_conf_are_kept() {
        let after = archive().redact(&[]).unwrap();
        assert_eq!(
            after.text("/etc/slurm/slurm.conf"),
            Ok("propagateResourceLimitsExcept=MEMLOCK".to_owned())
        );
        let names = after.list("/etc/security/limits.d").unwrap();
        assert_eq!(names, ["90-rdma.conf", "user-2.conf"]);
        assert!(after.read("/etc/security/limits.d/user-2.conf").is_ok());
    }

    #[test]
    fn redacting_twice_changes_nothing_more() {
        let once = archive().redact(&[]).unwrap();
        let kmsg = once.text("@kmsg").unwrap();
        assert!(
            kmsg.contains("<host-1>") && kmsg.contains("SerialNumber: serial-1"),
            "{kmsg}"
        );
        assert_eq!(archive().redact(&[]).unwrap(), once);
    }
}

//! Port counters of kernel devices.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use gdr_trace::PortTraffic;

/// Where the kernel lists its devices.
const DEVICES: &str = "/sys/class/infiniband";
/// The kernel counts 4-byte words (IBTA vol. 1, 16.1.3.5, PortXmitData).
const WORD: u64 = 4;

/// What the ports have sent and received, by device and port.
#[derive(Debug, Default)]
pub(super) struct PortCounters(BTreeMap<(String, u32), [u64; 2]>);

impl PortCounters {
    /// Returns the counters now. Ports that cannot be read are left out.
    pub(super) fn read() -> Self {
        Self::read_from(Path::new(DEVICES))
    }

    fn read_from(devices: &Path) -> Self {
        let mut all = BTreeMap::new();
        for nic in names(devices) {
            let ports = devices.join(&nic).join("ports");
            for port in names(&ports) {
                let counters = ports.join(&port).join("counters");
                let counter = |name: &str| -> Option<u64> {
                    let text = fs::read_to_string(counters.join(name)).ok()?;
                    text.trim().parse::<u64>().ok()?.checked_mul(WORD)
                };
                let sent = counter("port_xmit_data");
                let received = counter("port_rcv_data");
                if let (Ok(port), Some(sent), Some(received)) = (port.parse(), sent, received) {
                    all.insert((nic.clone(), port), [sent, received]);
                }
            }
        }
        Self(all)
    }

    /// Returns the increases. Ports without any are left out.
    pub(super) fn since(&self, before: &Self) -> Vec<PortTraffic> {
        let ports = self.0.iter().map(|(key, now)| {
            let then = before.0.get(key).copied().unwrap_or(*now);
            let [sent_bytes, received_bytes] =
                [0, 1].map(|at: usize| now[at].saturating_sub(then[at]));
            let (nic, port) = key.clone();
            PortTraffic {
                nic,
                port,
                sent_bytes,
                received_bytes,
            }
        });
        ports
            .filter(|port| port.sent_bytes > 0 || port.received_bytes > 0)
            .collect()
    }
}

/// Returns the names in a folder; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_increase_of_a_port_is_counted_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let counters = folder.path().join("mlx5_0/ports/1/counters");
        fs::create_dir_all(&counters).unwrap();
        let read = |sent: &str, received: &str| {
            fs::write(counters.join("port_xmit_data"), sent).unwrap();
            fs::write(counters.join("port_rcv_data"), received).unwrap();
            PortCounters::read_from(folder.path())
        };
        let before = read("10\n", "7\n");
        assert_eq!(read("10\n", "7\n").since(&before), []);
        let after = read("25\n", "7\n").since(&before);
        let expected = PortTraffic {
            nic: "mlx5_0".to_owned(),
            port: 1,
            sent_bytes: 60,
            received_bytes: 0,
        };
        assert_eq!(after, [expected]);
        assert_eq!(read("N/A\n", "7\n").since(&before), []);
    }
}

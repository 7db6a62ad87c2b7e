//! The tree that `lspci -t` draws.

use gdr_cuda::Bdf;

use super::headline::ids_in_brackets;
use crate::pci::{BusRange, Class, Function, Identity, VendorId};

/// The most branches that are open at once: more columns than lspci has lines for.
const MOST_BRANCHES: usize = 256;

/// The bus that what follows hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bus {
    domain: u32,
    number: u8,
}

/// A drawing as far as it was read.
#[derive(Debug, Default)]
pub(super) struct Drawing {
    /// The columns at which branches begin, and the bus of each; `None` beside the root buses.
    branches: Vec<(usize, Option<Bus>)>,
    /// Whether lines of the drawing follow.
    open: bool,
}

impl Drawing {
    /// Takes in a line of the drawing and appends what it shows; false for any other line.
    pub(super) fn line(&mut self, line: &str, functions: &mut Vec<Function>) -> bool {
        let line = line.trim_end();
        let Some(start) = line.find(|c| !matches!(c, ' ' | '|')) else {
            self.open = false;
            return false;
        };
        let begins = line.starts_with("-[") || line.starts_with("-+-[");
        let goes_on = self.open && matches!(line.as_bytes()[start], b'+' | b'\\');
        if begins {
            self.branches.clear();
        } else if !goes_on {
            self.open = false;
            return false;
        }
        self.open = true;
        let mut bus = match self.branches.iter().find(|(column, _)| *column == start) {
            Some((_, bus)) => *bus,
            None if begins => None,
            // A branch from nowhere: a line that was cut.
            None => return true,
        };
        let mut at = start;
        while let Some(rest) = line.get(at..) {
            let Some(first) = rest.chars().next() else {
                break;
            };
            match first {
                '+' => {
                    self.branches.retain(|(column, _)| *column != at);
                    if self.branches.len() < MOST_BRANCHES {
                        self.branches.push((at, bus));
                    }
                    at += 1;
                }
                '-' | '\\' => at += 1,
                '[' => {
                    let Some((range, domain)) = buses(rest) else {
                        break;
                    };
                    let domain = domain.or(bus.map(|bus| bus.domain)).unwrap_or(0);
                    if let (Some(_), Some(bridge)) = (bus, functions.last_mut()) {
                        bridge.bridge = Some(range);
                        bridge.identity.class = Some(Class(0x06_0400));
                    }
                    bus = Some(Bus {
                        domain,
                        number: range.secondary,
                    });
                    at += rest.find(']').map_or(rest.len(), |end| end + 1);
                }
                _ => {
                    let word = rest.split([' ', '-']).next().unwrap_or(rest);
                    let Some(bdf) = bus.and_then(|bus| address(bus, word)) else {
                        break;
                    };
                    let mut function = Function::new(bdf);
                    at += word.len();
                    let name = line.get(at..).unwrap_or_default();
                    if name.starts_with(' ') {
                        function.identity = identity(name.trim());
                        functions.push(function);
                        break;
                    }
                    functions.push(function);
                }
            }
        }
        true
    }
}

/// `[0000:e0]`, `[01]`, `[01-13]`: the buses and the domain, if it is there.
fn buses(text: &str) -> Option<(BusRange, Option<u32>)> {
    let inside = text.strip_prefix('[')?.split_once(']')?.0;
    let (domain, range) = match inside.rsplit_once(':') {
        Some((domain, range)) => (Some(u32::from_str_radix(domain, 16).ok()?), range),
        None => (None, inside),
    };
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let bus = |text| u8::from_str_radix(text, 16).ok();
    Some((
        BusRange {
            secondary: bus(first)?,
            subordinate: bus(last)?,
        },
        domain,
    ))
}

/// `01.1` on a bus.
fn address(bus: Bus, word: &str) -> Option<Bdf> {
    let (device, function) = word.split_once('.')?;
    let plausible = device.len() == 2 && function.len() == 1;
    format!("{:04x}:{:02x}:{device}.{function}", bus.domain, bus.number)
        .parse()
        .ok()
        .filter(|_| plausible)
}

/// What a name without a class tells: of the devices that matter here their class too.
fn identity(name: &str) -> Identity {
    let ids = ids_in_brackets(name);
    let vendor = ids
        .map(|(vendor, _)| vendor)
        .or_else(|| VendorId::from_name(name));
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    let class = match vendor {
        Some(VendorId::NVIDIA) if has(&["NVSwitch"]) => Some(Class(0x06_8000)),
        Some(VendorId::NVIDIA) if has(&["Audio"]) => Some(Class(0x04_0300)),
        Some(VendorId::NVIDIA) if has(&["USB", "UCSI", "Bridge", "Tegra", "DMA"]) => None,
        Some(VendorId::NVIDIA) => Some(Class(0x03_0200)),
        Some(VendorId::MELLANOX)
            if has(&["ConnectX", "Connect-IB", "Ethernet", "InfiniBand", "MT2"])
                && !has(&["Bridge", "DMA", "SoC", "management", "Flash"]) =>
        {
            Some(Class(0x02_0000))
        }
        _ => None,
    };
    Identity {
        class,
        vendor,
        device: ids.map(|(_, device)| device),
        name: Some(name.to_owned()),
        ..Identity::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use crate::Inventory;
    use crate::numa::NumaLayout;
    use crate::source::Datum;

    const DRAWN: &str = "\
-+-[10000:e0]---06.0-[e1]--
 +-[0000:40]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4
 |           +-01.1-[41-46]----00.0-[42-46]--+-00.0-[43]--+-00.0  NVIDIA Corporation AD102GL [RTX 6000 Ada Generation]
 |           |                               |            \\-00.1  NVIDIA Corporation AD102 High Definition Audio Controller
 |           |                               +-01.0-[44]--
 |           |                               \\-02.0-[45]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
 |           \\-03.1-[47]----00.0  NVIDIA Corporation GH100 [H100 PCIe]
 \\-[0000:00]-+-00.0  Intel Corporation Device 1
             \\-1f.3  Intel Corporation Device 2
";

    #[test]
    fn a_drawing_gives_the_tree_and_the_devices_that_matter() {
        let tree = read(DRAWN).unwrap().into_tree();
        assert_eq!(tree.len(), 14);
        let chain = |at: &str| tree.chain(at.parse().unwrap()).unwrap();
        let (root, above) = chain("45:00.0");
        let above: Vec<String> = above.iter().map(ToString::to_string).collect();
        assert_eq!(root.to_string(), "pci0000:40");
        assert_eq!(above, ["0000:40:01.1", "0000:41:00.0", "0000:42:02.0"]);
        assert_eq!(chain("00:1f.3").1, []);
        assert!(
            tree.get("10000:e0:06.0".parse().unwrap())
                .unwrap()
                .is_bridge()
        );
        let inventory = Inventory::of_tree(Datum::Present(tree), NumaLayout::unknown());
        let names: Vec<String> = (inventory.devices().iter())
            .map(|device| device.bdf.to_string())
            .collect();
        assert_eq!(names, ["0000:43:00.0", "0000:47:00.0", "0000:45:00.0"]);
    }

    #[test]
    fn a_list_and_a_drawing_of_one_machine_complete_each_other() {
        let list = "43:00.0 VGA compatible controller [0300]: NVIDIA Corporation X [10de:26b1]\n\
                    41:00.0 PCI bridge: Broadcom / LSI PEX890xx\n\n";
        let tree = read(&format!("{list}{DRAWN}")).unwrap().into_tree();
        assert_eq!(tree.len(), 14);
        let gpu = tree.get("43:00.0".parse().unwrap()).unwrap();
        assert_eq!(gpu.identity.device.unwrap().to_string(), "26b1");
        assert_eq!(tree.chain(gpu.bdf).unwrap().1.len(), 3);
    }

    #[test]
    fn cut_and_odd_drawings_are_read_as_far_as_they_go() {
        for text in [
            "-[0000:00]-+-00.0  X\n             \\-zz.9\n",
            "-[0000:00]-+-00.0\n    +-01.0 nothing above\n",
            "-[00]-+-00.0\n      \\-1f.3-[01\n",
            "-+-[0000:00]-+-00.0\n \\\u{e9}\u{e9}-\n",
        ] {
            let listing = read(text).unwrap();
            assert!(!listing.functions.is_empty(), "{text}");
        }
        assert!(read("-[zz]-\n").is_err());
    }
}

//! The tree printed by `lspci -t`.

use std::collections::BTreeSet;

use gdr_pci::Bdf;

use crate::import::left_out::shortened;
use crate::pci::{BusRange, Class, Function, Identity, RootBus, naming};

/// The most branches open at a time: more columns than lspci uses.
const MOST_BRANCHES: usize = 256;

/// The bus of the following functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bus {
    domain: u32,
    number: u8,
    /// The buses that may be behind bridges on it.
    range: BusRange,
}

/// A position from which branches leave, up to the one drawn with a backslash.
#[derive(Clone, Copy, Debug)]
struct Branch {
    /// Its starting column.
    column: usize,
    /// Its bus; `None` among the root buses.
    bus: Option<Bus>,
    /// Device and function of the last entry on it.
    last: Option<(u8, u8)>,
}

/// The output of `lspci -t`, as far as it was read.
#[derive(Debug, Default)]
pub(super) struct TreeView {
    /// The open branches, from the root down.
    branches: Vec<Branch>,
    /// The root buses.
    pub(super) roots: BTreeSet<RootBus>,
    /// The number of lines, or ends of lines, that fit nowhere.
    pub(super) dropped: usize,
    /// The first such line.
    pub(super) first_dropped: Option<String>,
}

/// How a line of the drawing starts.
enum Start {
    /// A root bus.
    Root,
    /// A function on a bus above, possibly the last of its branch.
    Function { is_last: bool },
}

impl TreeView {
    /// Parses a line of the drawing and appends its buses and functions. Returns false for any other line.
    pub(super) fn line(&mut self, line: &str, functions: &mut Vec<Function>) -> bool {
        let line = line.trim_end();
        let Some(at) = line.find(|c| !matches!(c, ' ' | '\t' | '|')) else {
            return false;
        };
        let Some(start) = start(&line[at..]) else {
            return false;
        };
        let is_read = match start {
            Start::Root => {
                if line[at..].starts_with('-') {
                    self.branches.clear();
                }
                self.branches.retain(|branch| branch.bus.is_none());
                self.follow(line, at, None, functions)
            }
            Start::Function { is_last } => {
                let bus = self.branch(line, at, is_last);
                bus.is_some() && self.follow(line, at + 1, bus, functions)
            }
        };
        if !is_read {
            self.dropped += 1;
            self.first_dropped.get_or_insert_with(|| shortened(line));
        }
        true
    }

    /// Returns the bus of the branch that a line continues: the one that starts at its column. If the line has lost
    /// leading blanks, it is the innermost open one, because lspci draws everything below a bridge before it continues
    /// above.
    fn branch(&mut self, line: &str, at: usize, is_last: bool) -> Option<Bus> {
        let (address, below) = head(&line[at + 2..])?;
        let at_column =
            (self.branches.iter()).rposition(|branch| branch.column == at && branch.bus.is_some());
        let fits = |branch: &Branch| {
            let ascends = branch.last.is_none_or(|last| last < address);
            let inside = branch.bus.zip(below).is_none_or(|(bus, below)| {
                below.secondary == 0
                    || bus.range.secondary > bus.range.subordinate
                    || (bus.range.secondary..=bus.range.subordinate).contains(&below.secondary)
            });
            branch.bus.is_some() && ascends && inside
        };
        let innermost = self.branches.len().checked_sub(1);
        let place = [at_column, innermost]
            .into_iter()
            .flatten()
            .find(|place| fits(&self.branches[*place]))
            .or(at_column)?;
        self.branches.truncate(place + 1);
        let branch = self.branches.last_mut()?;
        branch.last = Some(address);
        let bus = branch.bus;
        if is_last {
            self.branches.pop();
        }
        bus
    }

    /// Parses a line from its start, or from after a branch's mark. Returns false if its end is invalid.
    fn follow(
        &mut self,
        line: &str,
        mut at: usize,
        mut bus: Option<Bus>,
        functions: &mut Vec<Function>,
    ) -> bool {
        while let Some(rest) = line.get(at..) {
            let Some(first) = rest.chars().next() else {
                return true;
            };
            match first {
                '+' => {
                    if self.branches.len() == MOST_BRANCHES {
                        return false;
                    }
                    let goes_on = bus.is_some() || self.branches.is_empty();
                    if goes_on {
                        self.branches.push(Branch {
                            column: at,
                            bus,
                            last: None,
                        });
                    }
                    at += 1;
                }
                '-' | '\\' => at += 1,
                '[' => {
                    let Some((range, domain)) = buses(rest) else {
                        return false;
                    };
                    let domain = domain.or(bus.map(|bus| bus.domain)).unwrap_or(0);
                    match (bus, functions.last_mut()) {
                        (Some(_), Some(bridge)) => {
                            bridge.bridge = Some(range);
                            bridge.identity.class = Some(Class(0x06_0400));
                        }
                        _ => {
                            self.roots.insert(RootBus {
                                domain,
                                bus: range.secondary,
                            });
                        }
                    }
                    // A root bus is drawn with its own number, regardless of what is below it.
                    let range = match bus {
                        Some(_) => range,
                        None => BusRange {
                            secondary: 0,
                            subordinate: u8::MAX,
                        },
                    };
                    let number = buses(rest).map_or(0, |(range, _)| range.secondary);
                    bus = Some(Bus {
                        domain,
                        number,
                        range,
                    });
                    at += rest.find(']').map_or(rest.len(), |end| end + 1);
                }
                ' ' => return true,
                _ => {
                    let word = rest.split([' ', '-']).next().unwrap_or(rest);
                    let Some(bdf) = bus.and_then(|bus| address(bus, word)) else {
                        return false;
                    };
                    if let Some(branch) = self.branches.last_mut()
                        && branch.bus == bus
                    {
                        branch.last = Some((bdf.device, bdf.function));
                    }
                    let mut function = Function::new(bdf);
                    at += word.len();
                    let name = line.get(at..).unwrap_or_default();
                    if name.starts_with(' ') {
                        function.identity = identity(name.trim(), bdf.function);
                        functions.push(function);
                        return true;
                    }
                    functions.push(function);
                }
            }
        }
        true
    }
}

/// Returns how a line starts after its blanks and bars; `None` for a line outside the drawing.
fn start(line: &str) -> Option<Start> {
    let is_root = |rest: &str| {
        let inside = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        inside.is_some_and(|(bus, _)| {
            let mut digits = bus.bytes();
            bus.len() >= 2 && digits.all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'-'))
        })
    };
    if let Some(rest) = line.strip_prefix("-+-").or(line.strip_prefix('-')) {
        return is_root(rest).then_some(Start::Root);
    }
    let (is_last, rest) = match line.strip_prefix("+-") {
        Some(rest) => (false, rest),
        None => (true, line.strip_prefix("\\-")?),
    };
    if is_root(rest) {
        return Some(Start::Root);
    }
    head(rest).map(|_| Start::Function { is_last })
}

/// Parses device, function and the buses behind it, as in `01.1-[41-46]----00.0`.
fn head(text: &str) -> Option<((u8, u8), Option<BusRange>)> {
    let word = text.split([' ', '-']).next()?;
    let (device, function) = word.split_once('.')?;
    let device = u8::from_str_radix(device, 16)
        .ok()
        .filter(|_| device.len() == 2)?;
    let function = u8::from_str_radix(function, 16)
        .ok()
        .filter(|_| function.len() == 1)?;
    let behind = text.get(word.len()..)?.strip_prefix('-');
    let below = behind.and_then(buses).map(|(range, _)| range);
    Some(((device, function), below))
}

/// Parses `[0000:e0]`, `[01]` or `[01-13]`: the buses, and the domain if present.
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

/// Parses `01.1` as a function on a bus.
fn address(bus: Bus, word: &str) -> Option<Bdf> {
    let (device, function) = word.split_once('.')?;
    let plausible = device.len() == 2 && function.len() == 1;
    format!("{:04x}:{:02x}:{device}.{function}", bus.domain, bus.number)
        .parse()
        .ok()
        .filter(|_| plausible)
}

/// Infers an identity from a name or from numbers, with the class if they determine it.
fn identity(name: &str, function: u8) -> Identity {
    let (vendor, device) = naming::ids(name);
    Identity {
        class: naming::class(vendor, device, name, function),
        vendor,
        device,
        name: Some(name.to_owned()),
        ..Identity::default()
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::super::read;
    use crate::Inventory;
    use crate::numa::NumaLayout;

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
    fn a_drawing_has_the_tree_with_gpus_and_nics() {
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
        let inventory = Inventory::of_tree(Ok(tree), NumaLayout::unknown());
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
    fn devices_are_found_by_their_numbers_in_every_form_of_the_drawing() {
        for [nvidia, mellanox, efa] in [
            [
                "NVIDIA Corporation Device",
                "Mellanox Technologies Device",
                "Amazon.com, Inc. Device",
            ],
            ["Device 10de:", "Device 15b3:", "Device 1d0f:"],
            ["10de:", "15b3:", "1d0f:"],
        ] {
            let join = |maker: &str, number: &str| {
                let blank = if maker.ends_with(':') { "" } else { " " };
                format!("{maker}{blank}{number}")
            };
            let text = format!(
                "-[0000:00]-+-00.0  8086:09a2\n           +-01.0-[01]--+-00.0  {}\n           \
                 |            \\-00.1  {}\n           +-02.0-[02]----00.0  {}\n           \
                 +-03.0-[03]----00.0  {}\n           \\-04.0-[04]----00.0  {}\n",
                join(nvidia, "2684"),
                join(nvidia, "22ba"),
                join(nvidia, "22a3"),
                join(mellanox, "1021"),
                join(efa, "efa2"),
            );
            let inventory =
                Inventory::of_tree(Ok(read(&text).unwrap().into_tree()), NumaLayout::unknown());
            let at: Vec<String> = (inventory.devices().iter())
                .map(|device| device.bdf.to_string())
                .collect();
            assert_eq!(
                at,
                ["0000:01:00.0", "0000:03:00.0", "0000:04:00.0"],
                "{text}"
            );
            assert_eq!(inventory.nvswitches().count(), 1, "{text}");
        }
    }

    #[test]
    fn cut_and_odd_drawings_are_read_as_far_as_they_go() {
        for text in [
            "-[0000:00]-+-00.0  X\n           \\-zz.9\n",
            "-[0000:00]-+-00.0\n    +-01.0 nothing above\n",
            "-[00]-+-00.0\n      \\-1f.3-[01\n",
            "-+-[0000:00]-+-00.0\n \\\u{e9}\u{e9}-\n",
        ] {
            let listing = read(text).unwrap();
            assert!(!listing.functions.is_empty(), "{text}");
        }
        assert!(read("-[zz]-\n").is_err());
    }

    /// Returns every function of a listing, with the bridges above it.
    fn chains(text: &str) -> Vec<String> {
        let tree = read(text).unwrap().into_tree();
        (tree.functions())
            .map(|it| format!("{} {:?}", it.bdf, tree.chain(it.bdf)))
            .collect()
    }

    #[test]
    fn a_drawing_whose_lines_lost_their_leading_blanks_is_read_whole() {
        let lines = |to: fn(&str) -> String| DRAWN.lines().map(to).collect::<String>();
        let stripped = lines(|line| format!("{}\n", line.trim()));
        let indented = lines(|line| format!("        {line}\n"));
        let quoted = lines(|line| format!("> {line}\n"));
        let quoted_twice = lines(|line| format!(">> {}\n", line.trim_start()));
        let blanks_of_the_web = DRAWN.replace(' ', "\u{a0}");
        let doubled = lines(|line| format!("{line}\n\n"));
        for text in [
            stripped,
            indented,
            quoted,
            quoted_twice,
            blanks_of_the_web,
            doubled,
        ] {
            assert_eq!(chains(&text), chains(DRAWN), "{text}");
            assert_eq!(read(&text).unwrap().left_out, [], "{text}");
        }
    }

    #[test]
    fn lines_of_a_drawing_that_fit_nowhere_are_counted() {
        let cut: String = (DRAWN.lines().skip(4))
            .map(|line| format!("{line}\n"))
            .collect();
        let listing = read(&cut).unwrap();
        assert_eq!(listing.left_out.len(), 1, "{:?}", listing.left_out);
        let words = listing.left_out[0].to_string();
        assert!(words.starts_with("3 lines of the drawing"), "{words}");
        assert_contains!(words, "+-01.0-[44]--");
    }

    #[test]
    fn a_border_of_a_table_is_no_line_of_a_drawing() {
        let text = format!("{DRAWN}+-----------+\n|  GPU  PID |\n+-----+-----+\n");
        let listing = read(&text).unwrap();
        assert_eq!((listing.functions.len(), listing.left_out.len()), (14, 0));
    }
}
